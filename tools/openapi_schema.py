"""Write ``.cog/openapi_schema.json`` from a Cog runner's signature, as Cog's build tool does.

With that file Cog validates inputs, serves ``/openapi.json`` and streams server-sent events.
``python -m tools.openapi_schema`` writes the files of all runners.
"""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import cog
from cog._adt import InputField, Repetition
from cog._inspector import create_predictor

from engine.machine.root import SOURCE_ROOT
from tools.generated import write

RUNNERS = ("runner", "builder", "mock_cog_triton")
"""Packages whose module ``run`` has a class ``Runner``."""

_FIELDS = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "regex": "pattern",
    "choices": "enum",
    "description": "description",
    "deprecated": "deprecated",
    "default": "default",
}
_ENVELOPE = Path(__file__).with_name("openapi_envelope.json")
"""The document without ``Input`` and ``Output``: how Cog wraps them, the same for every runner."""


def openapi_schema(module: str, name: str = "Runner") -> dict[str, Any]:
    """Return the OpenAPI 3.0 document of the runner ``name``. Raises ValueError for an unknown annotation."""
    runner = create_predictor(module, name)
    inputs = runner.inputs.values()
    schema = {
        "title": "Input",
        "type": "object",
        "properties": {each.name: _property(each) for each in inputs},
    }
    if required := [each.name for each in inputs if not _is_optional(each) and each.default is None]:
        schema["required"] = required
    document: dict[str, Any] = json.loads(_ENVELOPE.read_text())
    document["info"]["version"] = cog.__version__
    # NOTE: the decorator leaves no mark on the function.
    if "@cog.streaming" in inspect.getsource(getattr(importlib.import_module(module), name).run):
        document["paths"]["/predictions"]["post"]["x-cog-streaming"] = True
    document["components"]["schemas"] = {
        "Input": schema,
        "Output": runner.output.json_type(),
        **document["components"]["schemas"],
    }
    return document


def _property(field: InputField) -> dict[str, Any]:
    title = field.name.replace("_", " ").title()
    schema: dict[str, Any] = {"title": title, "x-order": field.order, **field.type.json_type()}
    if _is_optional(field):
        # NOTE: Cog's build tool writes `nullable` (OpenAPI 3.0), Cog's validator reads the type.
        schema |= {"type": [schema["type"], "null"], "nullable": True}
    schema |= {key: getattr(field, name) for name, key in _FIELDS.items() if getattr(field, name) is not None}
    limits = {key: schema[key] for key in ("minimum", "maximum") if key in schema}
    return schema | {key: int(limit) for key, limit in limits.items() if limit.is_integer()}


def _is_optional(field: InputField) -> bool:
    return field.type.repetition is Repetition.OPTIONAL


def schema_text(module: str) -> str:
    return json.dumps(openapi_schema(module), indent=2) + "\n"


if __name__ == "__main__":
    write({SOURCE_ROOT / each / ".cog/openapi_schema.json": schema_text(f"{each}.run") for each in RUNNERS})
