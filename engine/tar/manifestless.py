"""Describe an engine without a manifest: one of the original cog-trt-llm, or a Hugging Face folder."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from engine.kinds import DEFAULT_KIND, KINDS
from engine.tar.manifest import EngineFacts, Library
from errors.engine_tar import EngineFileMissing, EngineNotFound, TokenizerMissing

CONFIG_NAME = "config.json"
BUILD_CONFIG_NAME = "cog-trt-llm-config.yaml"
DOCUMENTS = (CONFIG_NAME, BUILD_CONFIG_NAME)
"""Files that ``describe`` reads."""
MAX_DOCUMENT_BYTES = 4 << 20

_RANK_FILE = re.compile(r"(?:^|_)rank(\d+)\.engine$")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WEIGHTS = (".safetensors", ".bin", ".pt")

ReadDocument = Callable[[str], bytes | None]


Description = tuple[EngineFacts, tuple[str, ...]]
"""Facts, and one sentence for each that could not be derived."""


def describe(sizes: Mapping[str, int], read: ReadDocument, place: str) -> Description:
    """Derive an engine's facts from its file names (with sizes in bytes) and its ``DOCUMENTS``.

    ``read`` gives a document's content, or None. EngineNotFound if the files are no engine;
    EngineFileMissing or TokenizerMissing if they are only a part of one.
    """
    config = _json_object(read(CONFIG_NAME))
    if any(_RANK_FILE.search(name) for name in sizes):
        return _describe_tensorrt_llm(sizes, config, read(BUILD_CONFIG_NAME), place)
    if "pretrained_config" in config or ("mapping" in config and "architecture" in config):
        raise EngineNotFound(place=place, reason="holds a TensorRT-LLM checkpoint that was not compiled yet")
    if ("architectures" in config or "model_type" in config) and any(
        name.endswith(_WEIGHTS) for name in sizes
    ):
        return _describe_hugging_face(sizes, config, place)
    folder, _, _ = next(iter(sizes), "").partition("/")
    if sizes and all(name.startswith(f"{folder}/") for name in sizes):
        remedy = f"pack the content of the folder, as in `tar -C {folder} -cf engine.tar .`"
        raise EngineNotFound(place=place, reason=f"has all its files in a folder, {folder!r}", remedy=remedy)
    raise EngineNotFound(
        place=place,
        reason="holds no engine (no engine_manifest.json, no rank0.engine, no Hugging Face model)",
    )


def _describe_tensorrt_llm(
    sizes: Mapping[str, int], config: dict[str, Any], build_config: bytes | None, place: str
) -> Description:
    facts = _build_facts(config)
    world_size = facts["world_size"] or 1
    ranks = {int(match[1]) for name in sizes if (match := _RANK_FILE.search(name))}
    for rank in range(world_size):
        if rank not in ranks:
            raise EngineFileMissing(place=place, name=f"rank{rank}.engine")
    warnings = ["It has no engine_manifest.json: its files can't be verified, nor the GPU it was built for."]
    unknown = [name for name, value in facts.items() if value is None and name != "quantization"]
    if unknown:
        warnings.append(f"Its config.json does not tell {', '.join(unknown)}.")
    if "tokenizer.json" not in sizes:
        warnings.append("It has no tokenizer.json: the runner needs the model's fast tokenizer there.")
    version = facts.pop("version")
    given = _yaml_object(build_config)
    described = EngineFacts(
        engine_kind="tensorrt_llm",
        library=Library(name="tensorrt_llm", version=version) if version else None,
        model_id=_text(given.get("model_id")),
        build_config=given,
        **(facts | {"world_size": world_size}),
    )
    return described, tuple(warnings)


def _build_facts(config: dict[str, Any]) -> dict[str, Any]:
    """Read facts from ``pretrained_config`` and ``build_config``, or (before 0.8) from ``builder_config``.

    Older builds limit prompt and output each, later ones prompt and the sum.
    """
    pretrained = _object(config.get("pretrained_config"))
    build = _object(config.get("build_config" if pretrained else "builder_config"))
    mapping = _object(pretrained.get("mapping")) if pretrained else build
    max_input_len, max_output_len = _count(build.get("max_input_len")), _count(build.get("max_output_len"))
    both = max_input_len + max_output_len if max_input_len and max_output_len else None
    sizes = (mapping.get(key) for key in ("tp_size", "pp_size", "tensor_parallel", "pipeline_parallel"))
    known_sizes = [size for size in map(_count, sizes) if size]
    return {
        "version": _text(config.get("version")),
        "world_size": _count(mapping.get("world_size")) or (math.prod(known_sizes) if known_sizes else None),
        "dtype": _text(pretrained.get("dtype")) or _text(build.get("precision")),
        "quantization": _text(_object(pretrained.get("quantization")).get("quant_algo")),
        "max_batch_size": _count(build.get("max_batch_size")),
        "max_input_len": max_input_len,
        "max_seq_len": _count(build.get("max_seq_len")) or both,
    }


def _describe_hugging_face(sizes: Mapping[str, int], config: dict[str, Any], place: str) -> Description:
    if "tokenizer.json" not in sizes:
        raise TokenizerMissing(place=place, missing="tokenizer.json")
    engine_kind = next((kind.name for kind in KINDS.values() if kind.marker_file in sizes), DEFAULT_KIND)
    facts = EngineFacts(
        engine_kind=engine_kind,
        dtype=_text(config.get("dtype")) or _text(config.get("torch_dtype")),
        quantization=_text(_object(config.get("quantization_config")).get("quant_method")),
        max_seq_len=_count(config.get("max_position_embeddings")),
    )
    warning = (
        f"It has no engine_manifest.json: taken for a Hugging Face model of kind {engine_kind}, unverified."
    )
    return facts, (warning,)


def _json_object(content: bytes | None) -> dict[str, Any]:
    try:
        return _object(json.loads(content or b"{}"))
    except (ValueError, RecursionError):
        return {}


class _WithoutAliases(yaml.SafeLoader):
    """YAML loader that rejects aliases, which could make gigabytes of a few lines."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _yaml_object(content: bytes | None) -> dict[str, Any]:
    try:
        return _object(yaml.load(content or b"{}", _WithoutAliases))  # noqa: S506 (a SafeLoader)
    # NOTE: PyYAML's readers of a tagged value (!!bool, !!timestamp, ...) fail with whatever comes up.
    except Exception:  # noqa: BLE001 (an unreadable document is ignored)
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    """Return None for a text that JSON wrote with half a character: no manifest could hold it."""
    return value if isinstance(value, str) and value and not _SURROGATE.search(value) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
