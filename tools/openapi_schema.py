"""Write ``.cog/openapi_schema.json`` from a Cog runner's signature, as Cog's build tool does.

With that file Cog validates inputs, serves ``/openapi.json`` and streams server-sent events.
``python -m tools.openapi_schema`` writes the files of all runners; ``--check`` only compares.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cog
from cog.input import FieldInfo

from engine.machine.root import SOURCE_ROOT
from tools.generated import write_or_check

RUNNERS = {"runner": "runner.run", "builder": "builder.run", "mock_cog_triton": "mock_cog_triton.run"}
"""Folder of ``.cog/openapi_schema.json`` -> module with the class ``Runner``."""

_TYPES: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    cog.Path: {"type": "string", "format": "uri"},
    cog.Secret: {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True},
}
_OUTPUTS: dict[object, dict[str, Any]] = {
    cog.Path: {"type": "string", "format": "uri"},
    cog.ConcatenateIterator[str]: {
        "type": "array",
        "items": {"type": "string"},
        "x-cog-array-type": "iterator",
        "x-cog-array-display": "concatenate",
    },
}
_CONSTRAINTS = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "regex": "pattern",
    "choices": "enum",
    "description": "description",
    "deprecated": "deprecated",
}
_ENVELOPE = Path(__file__).with_name("openapi_envelope.json")
"""The document without ``Input`` and ``Output``: how Cog wraps them, the same for every runner."""


def openapi_schema(runner: type[cog.BaseRunner]) -> dict[str, Any]:
    """The OpenAPI 3.0 document of ``runner.run``. Raises KeyError for an unknown annotation."""
    hints = typing.get_type_hints(runner.run)
    parameters = [each for name, each in inspect.signature(runner.run).parameters.items() if name != "self"]
    document: dict[str, Any] = json.loads(_ENVELOPE.read_text())
    document["info"]["version"] = cog.__version__
    if _is_streaming(runner):
        document["paths"]["/predictions"]["post"]["x-cog-streaming"] = True
    document["components"]["schemas"] = {
        "Input": _input_schema(parameters, hints),
        "Output": {"title": "Output"} | _OUTPUTS[hints["return"]],
        **document["components"]["schemas"],
    }
    return document


def _input_schema(parameters: Sequence[inspect.Parameter], hints: dict[str, Any]) -> dict[str, Any]:
    required = [each.name for each in parameters if not _has_default(each, hints[each.name])]
    properties = {
        each.name: _property(each, hints[each.name], order) for order, each in enumerate(parameters)
    }
    schema: dict[str, Any] = {"title": "Input", "type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _property(parameter: inspect.Parameter, hint: object, order: int) -> dict[str, Any]:
    inner, is_optional = _unwrap_optional(hint)
    title = parameter.name.replace("_", " ").title()
    schema: dict[str, Any] = {"title": title, "x-order": order, **_TYPES[inner]}
    if is_optional:
        # NOTE: Cog's build tool writes `nullable` (OpenAPI 3.0), Cog's validator reads the type.
        schema |= {"type": [schema["type"], "null"], "nullable": True}
    info = parameter.default
    if isinstance(info, FieldInfo):
        schema |= {
            name: getattr(info, field)
            for field, name in _CONSTRAINTS.items()
            if getattr(info, field) is not None
        }
        if info.default is not None:
            schema["default"] = info.default
    return schema


def _has_default(parameter: inspect.Parameter, hint: object) -> bool:
    return _unwrap_optional(hint)[1] or getattr(parameter.default, "default", None) is not None


def _unwrap_optional(hint: object) -> tuple[object, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [each for each in typing.get_args(hint) if each is not type(None)]
        return inner[0], len(inner) < len(typing.get_args(hint))
    return hint, False


def _is_streaming(runner: type[cog.BaseRunner]) -> bool:
    """Whether ``run`` has ``@cog.streaming``, which can only be read from the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(runner.run)))
    function = tree.body[0]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    return any(ast.unparse(each).split("(")[0] == "cog.streaming" for each in function.decorator_list)


def schema_text(module: str) -> str:
    """The document for the ``Runner`` of ``module``."""
    return json.dumps(openapi_schema(importlib.import_module(module).Runner), indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    def make() -> dict[str, str]:
        return {f"{folder}/.cog/openapi_schema.json": schema_text(name) for folder, name in RUNNERS.items()}

    return write_or_check(make, SOURCE_ROOT, arguments, description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
