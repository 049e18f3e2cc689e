"""Checks of values against the annotations that NVIDIA publishes (``signatures.json``)."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

SIGNATURES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "signatures.json").read_text())
_PLAIN = {"str": str, "bool": bool, "int": int, "dict": dict}


def check_fields(instance: Any) -> None:
    name = type(instance).__name__
    for field, (annotation, *_) in SIGNATURES[name].items():
        check(f"{name}.{field}", annotation, getattr(instance, field))


def check(name: str, annotation: str, value: object) -> None:
    if not _fits(ast.parse(annotation, mode="eval").body, value):
        raise TypeError(f"{name} must be {annotation}, but is {value!r}")


def _fits(hint: ast.expr, value: object) -> bool:
    match hint:
        case ast.Constant(value=constant):
            return value == constant and type(value) is type(constant)
        case ast.Name(id="float"):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.Name(id="Any"):
            return True
        case ast.Name(id=plain) if plain in _PLAIN:
            return type(value) is _PLAIN[plain]
        case ast.Name(id="Path"):
            return isinstance(value, Path)
        case ast.Name(id=configuration):  # A class of the library, or a mapping of its fields.
            return isinstance(value, dict) or type(value).__name__ == configuration
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            return _fits_generic(outer, inner.elts if isinstance(inner, ast.Tuple) else [inner], value)
    raise AssertionError(ast.dump(hint))


def _fits_generic(outer: str, inner: list[ast.expr], value: object) -> bool:
    if outer == "Optional":
        return value is None or _fits(inner[0], value)
    if outer in ("Union", "Literal"):
        return any(_fits(each, value) for each in inner)
    if outer == "List":
        return isinstance(value, list) and all(_fits(inner[0], each) for each in value)
    assert outer in ("Dict", "Mapping"), outer
    return isinstance(value, dict)
