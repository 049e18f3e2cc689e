"""Write builder/config/vllm_arguments.json: the arguments of the pinned vLLM, with types and bounds.

    PYTHON_WITH_VLLM -m tools.list_vllm_arguments

The builder checks `vllm:` of a build config against that file, so that it needs no vLLM.
"""

import builtins
import dataclasses
import enum
import json
import types
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import annotated_types
import vllm.config
from vllm import AsyncEngineArgs
from vllm.config.cache import KV_CACHE_DTYPES
from vllm.config.lora import LoRAConfig
from vllm.config.model import ModelImpl
from vllm.config.offload import OffloadConfig
from vllm.config.quantization import QuantizationConfigArgs
from vllm.config.speculative import SpeculativeConfig
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
from vllm.transformers_utils.config import _CONFIG_FORMAT_TO_CONFIG_PARSER

from tools.generated import write

TARGET = Path(__file__).resolve().parents[1] / "builder" / "config" / "vllm_arguments.json"

_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    Path: "string",
    type(None): "null",
}
_CHOICES = {
    "quantization": sorted(QUANTIZATION_METHODS),
    "kv_cache_dtype": list(KV_CACHE_DTYPES),
    "load_format": sorted(_LOAD_FORMAT_TO_MODEL_LOADER),
    "config_format": ["auto", *_CONFIG_FORMAT_TO_CONFIG_PARSER],
    "model_impl": list(typing.get_args(ModelImpl)),
    "sleep_mode_backend": sorted(SleepModeBackendFactory._registry),
}
"""Choices of arguments whose type is any text."""
_FIELDS = {
    "lora_dtype": (LoRAConfig, "lora_dtype"),
    "offload_backend": (OffloadConfig, "offload_backend"),
    "spec_method": (SpeculativeConfig, "method"),
}
"""Fields that such arguments become, whose type has the choices."""
_CLASSES = {"speculative_config": SpeculativeConfig, "quantization_config": QuantizationConfigArgs}
"""Classes of arguments whose type is any mapping."""
_ADDED_CHOICES = {"attention_backend": ["auto"]}
"""Choices that vLLM reads and no type has."""
_ANY_CASE = (
    *("attention_backend", "linear_backend", "load_format", "mamba_backend", "moe_backend", "quantization"),
    "sparse_indexer_topk_backend",
)
"""Arguments whose texts vLLM reads in any case."""
_DASHES = ("linear_backend", "moe_backend", "sparse_indexer_topk_backend", "speculative_config")
"""Arguments in whose texts or keys vLLM reads dashes as underscores."""
_NAMES = ("cudagraph_mode",)
"""Keys whose values are names of an enumeration's members, in any case, or their numbers."""
_BOUNDS = {getattr(annotated_types, name.title()): name for name in ("ge", "gt", "le", "lt")}


def document() -> str:
    """Write one argument a line, so that a change of version is read as a diff."""
    bounds = _all_bounds()
    lines = []
    for field in sorted(dataclasses.fields(AsyncEngineArgs), key=lambda each: each.name):
        if field.name.startswith("_"):
            continue
        described = {**_describe(field.type), **bounds.get(field.name, {})}
        if field.name in _CHOICES:
            described["choices"] = _CHOICES[field.name]
        if field.name in _FIELDS:
            config, key = _FIELDS[field.name]
            described["choices"] = _keys(config)[key]["choices"]
        if field.name in _ADDED_CHOICES:
            described["choices"] += _ADDED_CHOICES[field.name]
        if field.name in _CLASSES:
            described["keys"] = _keys(_CLASSES[field.name])
        if field.name in _ANY_CASE:
            described["any_case"] = True
        if field.name in _DASHES:
            described["dashes"] = True
        lines.append(f"  {json.dumps(field.name)}: {json.dumps(described)}")
    body = ",\n".join(lines)
    return f'{{"vllm": {json.dumps(version("vllm"))}, "arguments": {{\n{body}\n}}}}\n'


def _describe(annotation: Any) -> dict[str, Any]:
    """Return the JSON types that the annotation takes and, if texts are limited, which texts."""
    kinds: set[str] = set()
    choices: list[Any] = []
    is_open = False
    for part in _parts(annotation):
        if typing.get_origin(part) is typing.Literal:
            choices += typing.get_args(part)
            kinds |= {_JSON_TYPES[type(value)] for value in typing.get_args(part)}
        elif isinstance(part, type) and issubclass(part, enum.IntEnum):
            choices += [int(member) for member in part]
            kinds.add("integer")
        elif isinstance(part, type) and issubclass(part, enum.Enum):
            choices += list(part.__members__)
            kinds.add("string")
        else:
            kind = _json_type(part)
            is_open = is_open or kind == "string"
            kinds |= {kind} if kind else set()
    described: dict[str, Any] = {"types": sorted(kinds)}
    if choices and not is_open:
        described["choices"] = choices
    if classes := [part for part in _parts(annotation) if hasattr(part, "__pydantic_fields__")]:
        described["keys"] = _keys(classes[0])
    return described


def _keys(described: Any) -> dict[str, Any]:
    """Describe the fields of a class that a mapping becomes.

    A field is left undescribed (``{}``) if vLLM changes its value before it checks the type, as it does for
    members of an enumeration.
    """
    validators = described.__pydantic_decorators__.field_validators.values()
    changed = {name for each in validators if each.info.mode != "after" for name in each.info.fields}
    keys: dict[str, Any] = {}
    for name, field in described.__pydantic_fields__.items():
        parts = _parts(field.annotation)
        enumerated: list[Any] = [part for part in parts if isinstance(part, enum.EnumMeta)]
        is_free = {name, "*"} & changed or Any in parts or enumerated
        known = {} if is_free else {**_describe(field.annotation), **_bounds(field)}
        if name in _NAMES:
            choices = [*enumerated[0].__members__, *(each.value for each in enumerated[0])]
            choices = [each for each in choices if isinstance(each, (int, str))]
            known = {"types": ["integer", "null", "string"], "choices": choices, "any_case": True}
        # What is not validated, vLLM sets itself.
        is_inner = field.init is False or any(
            type(each).__name__ == "SkipValidation" for each in field.metadata
        )
        if not is_inner and known.get("types") != []:
            keys[name] = known
    return keys


def _bounds(field: Any) -> dict[str, float]:
    bounded = [each for each in field.metadata if type(each) in _BOUNDS]
    return {_BOUNDS[type(each)]: getattr(each, _BOUNDS[type(each)]) for each in bounded}


def _parts(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for each in typing.get_args(annotation) for part in _parts(each)]
    if isinstance(annotation, str):
        # It names a class that vLLM imports for type checkers alone; the built-in types beside it count.
        names = [part.strip().partition("[")[0] for part in annotation.split("|")]
        return [type(None) if name == "None" else getattr(builtins, name, None) for name in names]
    return [annotation]


def _json_type(annotation: Any) -> str | None:
    """Return None for what no JSON value can be: classes, callables, data types of torch."""
    origin = typing.get_origin(annotation) or annotation
    if origin in _JSON_TYPES:
        return _JSON_TYPES[origin]
    if origin in (list, set, tuple):
        return "array"
    if origin is dict or dataclasses.is_dataclass(origin):
        return "object"
    return None


def _all_bounds() -> dict[str, dict[str, float]]:
    """Return bounds by argument, from the configuration classes whose fields the arguments become."""
    found: dict[str, dict[str, float]] = {}
    for name in vllm.config.__all__:
        for field_name, info in getattr(getattr(vllm.config, name), "__pydantic_fields__", {}).items():
            if bounds := _bounds(info):
                found.setdefault(field_name, bounds)
    return found


if __name__ == "__main__":
    write({TARGET: document()})
