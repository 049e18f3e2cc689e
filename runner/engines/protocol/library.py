"""A check that an engine's library has the names that its adapter uses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_CALL = "()"
_FIELDS = ("__dataclass_fields__", "__struct_fields__", "model_fields")
"""Attributes of classes whose fields are no members: dataclasses, msgspec's and pydantic's."""


def lacking(uses: Mapping[str, str]) -> list[str]:
    """Return what the library lacks. ``uses``: paths of names, and the parts of each, separated by spaces.

    A part is a field, a member, or a method with its first parameters: ``get(name,timeout)``. A parameter
    after ``*`` may be anywhere: ``get(name,*,timeout)``. All others must have defaults. ``()``: the class
    requires no argument that is not one of its parts.
    Raises what importing the library raises, if something that it needs is missing or broken.
    """
    return [each for path, parts in uses.items() for each in _lacking(path, parts.split())]


def find(path: str) -> Any:
    """Import a module, or a name in one. Raises ImportError or AttributeError."""
    folder, _, name = path.rpartition(".")
    module = import_module(folder)
    return getattr(module, name) if hasattr(module, name) else import_module(path)


def _lacking(path: str, parts: list[str]) -> list[str]:
    """Return the parts that the name lacks, or the name."""
    try:
        thing = find(path)
    except ModuleNotFoundError as exc:
        is_part = "." in (exc.name or "") and f"{path}.".startswith(f"{exc.name}.")
        if not is_part:  # A module of the library lacks it, or the library is not there.
            raise
        return [path]
    names = {*dir(thing), *(each for kind in _FIELDS for each in getattr(thing, kind, ()))}
    required = _required(thing) if _CALL in parts else []
    return [
        *(f"{path}.{part}" for part in parts if part != _CALL and not _has(thing, names, part)),
        *(f"{path}() without {each}" for each in required if each not in parts),
    ]


def _required(thing: Any) -> list[str]:
    """Return the arguments without which the class can't be called."""
    parameters = inspect.signature(thing).parameters.values()
    return [each.name for each in parameters if not _is_optional(each)]


def _is_optional(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return is_variable or parameter.default is not parameter.empty


def _has(thing: Any, names: set[str], part: str) -> bool:
    name, bracket, text = part.removesuffix(")").partition("(")
    if name not in names or not bracket:
        return name in names
    first, _, anywhere = text.partition(",*,")
    expected, others = first.split(",") if first else [], set(anywhere.split(",")) - {""}
    method = getattr(thing, name)
    found = [each for key, each in inspect.signature(method).parameters.items() if key != "self"]
    rest = found[len(expected) :]
    have_defaults = all(_is_optional(each) for each in rest if each.name not in others)
    takes = any(each.kind is each.VAR_KEYWORD for each in rest) or others <= {each.name for each in rest}
    return [each.name for each in found[: len(expected)]] == expected and takes and have_defaults
