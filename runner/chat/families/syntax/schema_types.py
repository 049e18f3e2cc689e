"""Types of JSON that a schema has for a value that a model writes as text."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any
from urllib.parse import unquote

STRING = "string"
_NUMBERS = {"integer", "number"}
ANY = frozenset({STRING, *_NUMBERS, "boolean", "null", "object", "array"})
_ALTERNATIVES = ("anyOf", "oneOf")
_MAX_DEPTH = 16
_OTHER_NAMES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), STRING),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("list", "tuple"), "array"),
}
"""Names that clients write instead of JSON schema's types."""


def is_text_by(schema: Any) -> bool:
    """Return True if a guide makes the model write a value of this schema as it is, and not as JSON."""
    named, values = (schema.get("type"), schema.get("enum")) if isinstance(schema, dict) else (None, None)
    if named is None and isinstance(values, list) and values:
        return all(isinstance(value, str) for value in values)
    return named in (STRING, [STRING])


def schema_of(schema: Mapping[str, Any], name: str) -> Any:
    """Return the schema of the property ``name``; None if the schema says nothing of it."""
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return others if isinstance(others, dict) and others else None


def parts_of(schema: Any, root: Any) -> list[Mapping[str, Any]]:
    """Return the schema and those that it is made of: by ``$ref``, ``allOf``, ``anyOf`` and ``oneOf``."""
    found: list[Mapping[str, Any]] = []
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and not any(part is each for each in found):
            found.append(part)
            waiting += reversed((*_all_of(part, root), *chain.from_iterable(_any_of(part))))
    return found


def types_of(schema: Any, root: Any) -> frozenset[str]:
    """Return the types of JSON that ``schema`` allows. ``root`` has what it refers to."""
    return _types_of(schema, root, {}, 0)


def allows(schema: Any, value: Any, root: Any) -> bool:
    """Return True if a value is of the schema's types, and one of its values. Nothing else is checked."""
    return _allows(schema, value, root, {}, 0)


# Each part of a schema is read once, however many references lead to it: ``known`` has the results, by id.


def _types_of(schema: Any, root: Any, known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = ANY
    allowed = _named(schema.get("type"))
    if allowed != ANY:
        allowed |= {"null"} if schema.get("nullable") is True else set()
    else:
        for values in _values(schema):
            allowed &= frozenset().union(*map(_types_of_value, values))
        for part in _all_of(schema, root):
            allowed &= _types_of(part, root, known, depth + 1)
        for parts in _any_of(schema):
            allowed &= frozenset().union(*(_types_of(part, root, known, depth + 1) for part in parts))
    known[id(schema)] = allowed or ANY
    return known[id(schema)]


def _allows(schema: Any, value: Any, root: Any, known: dict[int, bool], depth: int) -> bool:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return True
    if id(schema) in known:
        return known[id(schema)]

    def is_of(part: Any) -> bool:
        return _allows(part, value, root, known, depth + 1)

    known[id(schema)] = True
    types = _named(schema.get("type")) | ({"null"} if schema.get("nullable") is True else set())
    known[id(schema)] = (
        bool(types & _types_of_value(value))
        and all(any(_is_same(value, each) for each in values) for values in _values(schema))
        and all(map(is_of, _all_of(schema, root)))
        and all(any(map(is_of, parts)) for parts in _any_of(schema))
    )
    return known[id(schema)]


def _named(named: Any) -> frozenset[str]:
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    known = {_OTHER_NAMES.get(str(each).lower(), str(each)) for each in names}
    if "number" in known:
        known |= _NUMBERS
    return frozenset(known) if known and known <= ANY else ANY


def _types_of_value(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset(_NUMBERS)
        case float():
            return frozenset(_NUMBERS if value.is_integer() else {"number"})
        case str():
            return frozenset({STRING})
    return frozenset({"array" if isinstance(value, list) else "object"})


def _is_same(value: Any, other: Any) -> bool:
    """Compare as JSON does, where true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _values(schema: Mapping[str, Any]) -> list[list[Any]]:
    values = schema.get("enum")
    listed = [values] if isinstance(values, list) and values else []
    return [*listed, *([[schema["const"]]] if "const" in schema else [])]


def _all_of(schema: Mapping[str, Any], root: Any) -> list[Any]:
    parts = schema.get("allOf")
    found = list(parts) if isinstance(parts, list) else []
    reference = schema.get("$ref")
    return [*found, _referred(reference, root)] if isinstance(reference, str) else found


def _any_of(schema: Mapping[str, Any]) -> Iterable[list[Any]]:
    for key in _ALTERNATIVES:
        parts = schema.get(key)
        if isinstance(parts, list) and parts:
            yield parts


def _referred(reference: str, root: Any) -> Any:
    """Return the part of ``root`` that a JSON pointer names; None if there is none."""
    found, (start, *names) = root, reference.split("/")
    if start != "#":
        return None
    for name in names:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found
