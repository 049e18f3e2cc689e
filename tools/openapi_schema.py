"""Writes ``.cog/openapi_schema.json`` from a Cog runner's signature, as Cog's build tool would.

With that file Cog validates inputs, serves ``/openapi.json`` and streams server-sent events. Usage:
``python -m tools.openapi_schema`` writes them all; ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Any

import cog
from cog.input import FieldInfo

from engine.machine.root import SOURCE_ROOT

RUNNERS = {"runner": "runner.run", "builder": "builder.run", "mock_cog_triton": "mock_cog_triton.run"}
"""Folder that gets ``.cog/openapi_schema.json`` -> module that has ``Runner``."""

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
_REF = "#/components/schemas/"


def openapi_schema(runner: type[cog.BaseRunner]) -> dict[str, Any]:
    """The OpenAPI 3.0 document of ``runner.run``; an annotation it does not know is a KeyError."""
    hints = typing.get_type_hints(runner.run)
    parameters = [each for name, each in inspect.signature(runner.run).parameters.items() if name != "self"]
    predict = _operation("Predict", "predict_predictions_post")
    predict["requestBody"] = {"content": _json({"$ref": _REF + "PredictionRequest"})}
    predict["responses"] = _responses({"$ref": _REF + "PredictionResponse"}, can_be_invalid=True)
    if _is_streaming(runner):
        predict["x-cog-streaming"] = True
    cancel = _operation("Cancel", "cancel_predictions__prediction_id__cancel_post")
    cancel["parameters"] = [
        {"in": "path", "name": "prediction_id", "required": True, "schema": {"type": "string"}}
    ]
    cancel["responses"] = _responses({}, can_be_invalid=True)
    health = _operation("Healthcheck", "healthcheck_health_check_get") | {"responses": _responses({})}
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": cog.__version__},
        "paths": {
            "/health-check": {"get": health},
            "/predictions": {"post": predict},
            "/predictions/{prediction_id}/cancel": {"post": cancel},
        },
        "components": {
            "schemas": {
                "Input": _input_schema(parameters, hints),
                "Output": {"title": "Output"} | _OUTPUTS[hints["return"]],
                **_envelope_schemas(),
            }
        },
    }


def _input_schema(parameters: Sequence[inspect.Parameter], hints: dict[str, Any]) -> dict[str, Any]:
    required = [each.name for each in parameters if not _has_default(each, hints[each.name])]
    properties = {
        each.name: _property(each, hints[each.name], order) for order, each in enumerate(parameters)
    }
    schema: dict[str, Any] = {"title": "Input", "type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _property(parameter: inspect.Parameter, hint: object, order: int) -> dict[str, Any]:
    inner, is_optional = _unwrap_optional(hint)
    schema: dict[str, Any] = {"title": _title(parameter.name), "x-order": order, **_TYPES[inner]}
    if is_optional:
        # NOTE: `nullable` is OpenAPI's word and all Cog itself writes; its validator goes by the type.
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
    """Whether ``run`` has ``@cog.streaming``, which leaves no trace on the function itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(runner.run)))
    function = tree.body[0]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    return any(ast.unparse(each).split("(")[0] == "cog.streaming" for each in function.decorator_list)


def _envelope_schemas() -> dict[str, Any]:
    """What Cog wraps input and output in; the same for every runner."""
    text = {"type": "string"}
    time = {"type": "string", "format": "date-time"}
    return {
        "PredictionRequest": _object("PredictionRequest", id=text, input={"$ref": _REF + "Input"}),
        "PredictionResponse": _object(
            "PredictionResponse",
            input={"$ref": _REF + "Input"},
            output={"$ref": _REF + "Output"},
            id=text,
            version=text,
            created_at=time,
            started_at=time,
            completed_at=time,
            status={"$ref": _REF + "Status"},
            error=text,
            logs=text,
            metrics={"type": "object"},
        ),
        "Status": {
            "title": "Status",
            "type": "string",
            "enum": ["starting", "processing", "succeeded", "canceled", "failed"],
        },
        "HTTPValidationError": _object(
            "HTTPValidationError", detail={"type": "array", "items": {"$ref": _REF + "ValidationError"}}
        ),
        "ValidationError": _object(
            "ValidationError", loc={"type": "array", "items": {}}, msg=text, type=text
        ),
    }


def _object(title: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties}


def _operation(summary: str, operation_id: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": operation_id}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(schema: dict[str, Any], *, can_be_invalid: bool = False) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "Successful Response", "content": _json(schema)}}
    if can_be_invalid:
        invalid = {"$ref": _REF + "HTTPValidationError"}
        responses["422"] = {"description": "Validation Error", "content": _json(invalid)}
    return responses


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def schema_text(module: str) -> str:
    """The file's text for the ``Runner`` of a module."""
    return json.dumps(openapi_schema(importlib.import_module(module).Runner), indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.openapi_schema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    options = parser.parse_args(arguments)
    stale = 0
    for folder, module in RUNNERS.items():
        path = SOURCE_ROOT / folder / ".cog" / "openapi_schema.json"
        text = schema_text(module)
        if path.is_file() and path.read_text() == text:
            continue
        stale += 1
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(f"{'stale' if options.check else 'written'}: {path.relative_to(SOURCE_ROOT)}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
