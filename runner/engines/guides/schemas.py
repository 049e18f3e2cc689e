"""JSON schemas in the form in which llguidance follows them.

llguidance refuses keywords that it does not know, even if they have no effect. It reads large numbers
inexactly.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from runner.engines.guides.numbers import BOUNDS, exact_values, has_numbers, with_bounds

Schema = Mapping[str, Any]

MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
ONE = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else"),
)
"""Keywords whose values are subschemas: by name, in a list, or one."""
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$comment", "$id", "$anchor"),
}
_OF_ANY_TYPE = {
    *("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("$ref", "$dynamicRef", "$recursiveRef"),
}
_OF_TYPES = {
    "object": {
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "required", "minProperties", "maxProperties"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
    },
    "string": {"minLength", "maxLength", "pattern", "format"},
}
_DIALECT = re.compile(r"json-schema\.org/draft(-0[467]|/2019-09|/2020-12)/")
_FORMATS = {
    *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4"),
    "ipv6",
    *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "json-pointer"),
    *("relative-json-pointer", "regex"),
}
"""Formats of JSON Schema. Any other is an annotation."""
_MAX_SIZE = 1 << 31
"""A limit of a length that no output reaches."""


def followed(schema: Any, place: str = "#") -> Any:
    """Return the schema as llguidance gets it. Raises InvalidGuide for numbers that it can't follow."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not _has_no_effect(key, value, schema)}
    for key in ("const", "enum"):
        if key in kept:
            is_integer = has_numbers(kept, "integer") and not has_numbers(kept, "number")
            kept[key] = exact_values(kept[key], f"{place}/{key}", is_integer=is_integer)
    if any(key in kept for key in BOUNDS):
        kept = with_bounds(kept, place)
    return {key: _with_parts(key, value, f"{place}/{key}") for key, value in kept.items()}


def keywords_with_effect(schema: Schema, type_name: str) -> list[str]:
    """Return keywords that say something about values of this type: ``object`` or ``string``."""
    known = _OF_ANY_TYPE | _OF_TYPES[type_name]
    return [key for key, value in schema.items() if key in known and not _has_no_effect(key, value, schema)]


def schema_in(grammar: str) -> str:
    """Return the schema of a grammar of llguidance, as JSON, with its options for llguidance."""
    return json.dumps(json.loads(grammar)["grammars"][0]["json_schema"])


def _with_parts(key: str, value: Any, place: str) -> Any:
    if key in LISTS and isinstance(value, list):
        return [followed(each, f"{place}/{index}") for index, each in enumerate(value)]
    if key in ONE:
        return followed(value, place)
    if key in MANY and isinstance(value, dict):
        steps = {name: name.replace("~", "~0").replace("/", "~1") for name in value}
        return {name: followed(each, f"{place}/{steps[name]}") for name, each in value.items()}
    return value


def _has_no_effect(key: str, value: Any, schema: Schema) -> bool:
    try:
        return key in _NO_EFFECT and _NO_EFFECT[key](value, schema)
    except TypeError:
        return False  # It is of a wrong type, which llguidance names.


def _accepts_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _ANNOTATIONS)


def _accepts_texts(schema: Any) -> bool:
    if not isinstance(schema, dict) or "type" not in schema:
        return _accepts_all(schema)
    types = schema["type"]
    others = {key: value for key, value in schema.items() if key != "type"}
    return _accepts_all(others) and (types == "string" or (isinstance(types, list) and "string" in types))


def _decides_nothing(value: Any, schema: Schema) -> bool:
    return _accepts_all(schema.get("then", True)) and _accepts_all(schema.get("else", True))


def _follows_no_if(value: Any, schema: Schema) -> bool:
    return "if" not in schema or _accepts_all(value)


def _requires_nothing(value: Any, schema: Schema) -> bool:
    required = schema.get("required", [])
    return isinstance(value, dict) and all(
        all(name in required for name in each) if isinstance(each, list) else _accepts_all(each)
        for each in value.values()
    )


def _counts_nothing(value: Any, schema: Schema) -> bool:
    return "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema)


def _is_beyond(value: Any, schema: Schema) -> bool:
    return isinstance(value, (int, float)) and value >= _MAX_SIZE


def _has_fewer_names(value: Any, schema: Schema) -> bool:
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return _is_beyond(value, schema) or (is_closed and value >= len(schema.get("properties", ())))


_NO_EFFECT: Mapping[str, Callable[[Any, Schema], bool]] = {
    "propertyNames": lambda value, schema: _accepts_texts(value),
    "uniqueItems": lambda value, schema: value is False or schema.get("maxItems") in (0, 1),
    "if": _decides_nothing,
    "then": _follows_no_if,
    "else": _follows_no_if,
    "contains": _counts_nothing,
    "minContains": _counts_nothing,
    "maxContains": _counts_nothing,
    "dependencies": _requires_nothing,
    "dependentRequired": _requires_nothing,
    "dependentSchemas": _requires_nothing,
    "allOf": lambda value, schema: isinstance(value, list) and all(map(_accepts_all, value)),
    "not": lambda value, schema: value is False,
    "patternProperties": lambda value, schema: value == {},
    "unevaluatedItems": lambda value, schema: _accepts_all(value),
    "unevaluatedProperties": lambda value, schema: _accepts_all(value),
    "$dynamicAnchor": lambda value, schema: True,
    "$recursiveAnchor": lambda value, schema: True,
    "$schema": lambda value, schema: _DIALECT.search(str(value)) is None,
    "format": lambda value, schema: value not in _FORMATS,
    "maxItems": _is_beyond,
    "maxLength": _is_beyond,
    "maxProperties": _has_fewer_names,
    "minProperties": lambda value, schema: value <= len(set(schema.get("required", ()))),
}
"""Functions by keyword: True if the keyword has no effect with this value, in this schema."""
