"""A request's body: bytes within the limit, JSON, and the fields of its endpoint.

msgspec reports a field that does not fit in a sentence only. So ``check_document`` looks for it, once msgspec
has refused a document: a valid request pays nothing for it.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import Request

from errors.api import BodyTooLarge, InvalidBody, UnknownField
from errors.requests import InvalidInput

_MAX_LENGTH_DIGITS = 18
_SIMILARITY = 0.8
"""How similar, by difflib, a known field must be to an unknown one to be suggested."""
_PYTHON_TYPES: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.BoolType: (bool,),
    inspect.DictType: (dict,),
    inspect.FloatType: (int, float),
    inspect.IntType: (int,),
    inspect.ListType: (list,),
    inspect.NoneType: (type(None),),
    inspect.StrType: (str,),
    inspect.StructType: (dict,),
}
_type_info = cache(inspect.type_info)

B = TypeVar("B", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[B], max_bytes: int) -> B:
    """Raises E1606, E1600, E1601, or E1005 with the field; ClientDisconnect if the client leaves."""
    content = await _read(request, max_bytes)
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as exc:
            # NOTE: msgspec validates while it reads: only now it is known whether all of it is JSON.
            check_document(msgspec.json.decode(content), kind)
            # Such as a field that is given twice.
            raise InvalidBody(reason=f"it is not valid ({exc})") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(reason=f"it is not JSON ({exc})".replace("\n", " ")) from exc


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _MAX_LENGTH_DIGITS or int(length) > max_bytes):
        raise BodyTooLarge(max_bytes=max_bytes)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise BodyTooLarge(max_bytes=max_bytes)
    return bytes(content)


def check_document(document: object, kind: type) -> None:
    """Raise E1600, E1601 or E1005 for the first field that does not fit ``kind``."""
    struct = _type_info(kind)
    if not _has_type(document, struct):
        raise InvalidBody(reason=f"it must be {_describe(struct)}")
    _check(document, struct, "")


def _check(value: Any, kind: inspect.Type, name: str) -> None:
    """``name`` is the path of ``value`` in the document."""
    match kind:
        case inspect.Metadata():
            _check(value, kind.type, name)
        case inspect.UnionType():
            _check_union(value, kind, name)
        case inspect.AnyType():
            pass
        case _ if not _has_type(value, kind) or not _is_within_limits(value, kind):
            raise InvalidInput(name=name, expected=_describe(kind), value=value)
        case inspect.StructType():
            _check_struct(value, kind, name)
        case inspect.ListType():
            for index, item in enumerate(value):
                _check(item, kind.item_type, f"{name}[{index}]")
        case inspect.DictType():
            for key, item in value.items():
                _check(item, kind.value_type, f"{name}.{key}")


def _check_union(value: Any, kind: inspect.UnionType, name: str) -> None:
    alternatives = [each for each in _alternatives(kind) if _has_type(value, each)]
    if not alternatives:
        raise InvalidInput(name=name, expected=_describe(kind), value=value)
    tags = {each.tag: each for each in alternatives if isinstance(each, inspect.StructType)}
    if len(tags) < 2:
        _check(value, alternatives[0], name)
        return
    tag_field = next(iter(tags.values())).tag_field
    tag = value.get(tag_field)
    if not isinstance(tag, str) or tag not in tags:
        raise InvalidInput(name=f"{name}.{tag_field}", expected=_one_of(tags), value=tag)
    _check_struct(value, tags[tag], name)


def _check_struct(value: dict[str, Any], kind: inspect.StructType, name: str) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    prefix = f"{name}." if name else ""
    for key, item in value.items():
        if key in fields:
            _check(item, fields[key].type, prefix + key)
        elif key != kind.tag_field:
            similar = difflib.get_close_matches(key, fields, n=1, cutoff=_SIMILARITY)
            remedy = f"leave it out, or send {similar[0]} if that is meant" if similar else "leave it out"
            raise UnknownField(name=prefix + key, remedy=remedy)
    for field in kind.fields:
        if field.required and field.encode_name not in value:
            raise InvalidInput(name=prefix + field.encode_name, expected="given", value=None)


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [alternative for each in kind.types for alternative in _alternatives(each)]
    return [kind]


def _has_type(value: object, kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.LiteralType):
        return value in kind.values
    # NOTE: to Python True is an int, to JSON it is none.
    if isinstance(value, bool):
        return isinstance(kind, inspect.BoolType)
    return isinstance(value, _PYTHON_TYPES[type(kind)])


def _is_within_limits(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.FloatType() if abs(value) > sys.float_info.max:
            return False  # A number of JSON has any number of digits.
        case inspect.IntType() | inspect.FloatType():
            low, high, size = kind.ge, kind.le, value
        case inspect.StrType() | inspect.ListType():
            low, high, size = kind.min_length, kind.max_length, len(value)
        case _:
            return True
    return (low is None or size >= low) and (high is None or size <= high)


def _describe(kind: inspect.Type) -> str:
    """What a value must be."""
    match kind:
        case inspect.Metadata() | inspect.UnionType():
            alternatives = [each for each in _alternatives(kind) if not isinstance(each, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_describe, alternatives)))
        case inspect.LiteralType():
            return _one_of(kind.values)
        case inspect.IntType():
            return "a whole number" + _limits(kind.ge, kind.le)
        case inspect.FloatType():
            return "a number" + _limits(kind.ge, kind.le)
        case inspect.StrType():
            return "a string" + _limits(kind.min_length, kind.max_length, " characters")
        case inspect.ListType():
            return "a list" + _limits(kind.min_length, kind.max_length, " items")
        case inspect.BoolType():
            return "true or false"
    return "an object"


def _one_of(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))


def _limits(low: float | None, high: float | None, unit: str = "") -> str:
    if unit and (low, high) == (1, None):
        return " that is not empty"
    if low is None:
        return "" if high is None else f" of at most {high}{unit}"
    return f" of at least {low}{unit}" if high is None else f" of {low} to {high}{unit}"
