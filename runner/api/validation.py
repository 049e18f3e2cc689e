"""Validation of a request's body: JSON, with the fields of its endpoint.

msgspec reports a field that does not fit in a sentence only. So ``check_document`` describes it, once msgspec
has refused a document: a valid request pays nothing for it. It follows the path at the end of the sentence,
because a document may have hundreds of thousands of other values.
"""

import difflib
import json
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from errors.api import InvalidBody, UnknownField
from errors.requests import InvalidInput

_PATH = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_MAX_NAME_CHARACTERS = 100
"""Number of characters that are shown of an unknown field."""
_SIMILARITY = 0.8
"""Similarity, by difflib, at which a known field is suggested for an unknown one."""
_OTHER_NAMES = {
    "functions": ("tools",),
    "input": ("messages", "prompt"),
    "max_completion_tokens": ("max_output_tokens", "max_tokens"),
    "max_output_tokens": ("max_tokens",),
    "max_tokens": ("max_output_tokens",),
    "messages": ("input", "prompt"),
    "prompt": ("messages", "input"),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
}
"""Fields of one API by their names in the others, which are suggested before similar names."""
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
T = TypeVar("T")
Path = Iterator[re.Match[str]] | None


def decode(content: bytearray, kind: type[B]) -> B:
    """Decode the body. Raises E1600, E1601, or E1005 with the field."""
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as exc:
            # NOTE: msgspec validates while it reads: only now it is known that all of it is JSON.
            document = msgspec.json.decode(content)
            sent = _sent(document, _type_info(kind))
            if sent is not document:
                return convert(sent, kind)
            check_document(document, kind, str(exc))
            # For example, a field is given twice.
            raise InvalidBody(reason=f"it is not valid ({exc})") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(reason=f"it is not JSON ({exc})".replace("\n", " ")) from exc


def convert(value: object, kind: type[T], name: str = "") -> T:
    """Convert a part of a document, found at ``name``. Raises E1601, or E1005 with the field."""
    info = inspect.type_info(kind)
    try:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            value = _sent(value, info)
            return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        found = _PATH.search(str(exc))
        _check(value, info, name, _STEP.finditer(found[1] if found else ""))
        raise InvalidBody(reason=f"{name or 'it'} is not valid ({exc})") from exc


def _sent(value: Any, kind: inspect.Type) -> Any:
    """Return the value without fields that count as not sent; itself if it has none of them."""
    match kind:
        case inspect.Metadata():
            return _sent(value, kind.type)
        case inspect.UnionType():
            return _sent(value, _alternative(value, kind))
        case inspect.ListType() if isinstance(value, list):
            items = [_sent(item, kind.item_type) if isinstance(item, dict) else item for item in value]
            return value if all(map(operator.is_, items, value)) else items
        case inspect.DictType() if isinstance(value, dict):
            takes_null = _takes_null(kind.value_type)
            kept = {key: item for key, item in value.items() if item is not None or takes_null}
            return value if len(kept) == len(value) else kept
        case inspect.StructType() if isinstance(value, dict):
            return _sent_fields(value, kind)
    return value


def _sent_fields(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    types = {field.encode_name: field.type for field in kind.fields}
    sent = {}
    for key, item in value.items():
        if key in types:
            if item is not None or _takes_null(types[key]):
                sent[key] = _sent(item, types[key])
        elif key == kind.tag_field or not _is_neutral(item, _neutral_values(kind, key)):
            sent[key] = item
    is_same = len(sent) == len(value) and all(sent[key] is value[key] for key in sent)
    return value if is_same else sent


def _neutral_values(kind: inspect.StructType, name: str) -> tuple[object, ...]:
    """Return the values of an unknown field that count as not sent."""
    known: Mapping[str, tuple[object, ...]] = getattr(kind.cls, "neutral_values", {})
    return known.get(name, ())


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    # NOTE: to Python True equals 1, to JSON it does not.
    return value is None or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral
    )


def _takes_null(kind: inspect.Type) -> bool:
    return any(isinstance(each, (inspect.AnyType, inspect.NoneType)) for each in _alternatives(kind))


def _alternative(value: object, kind: inspect.UnionType) -> inspect.Type:
    """Return the type that the value is meant to have, or any."""
    found = [each for each in _alternatives(kind) if _has_type(value, each)]
    for each in (each for each in found if isinstance(each, inspect.StructType)):
        assert isinstance(value, dict)
        if each.tag_field is not None and value.get(each.tag_field) == each.tag:
            return each
    return found[0] if found else inspect.AnyType()


def check_document(document: object, kind: type, refusal: str = "") -> None:
    """Raise E1600, E1601 or E1005 for a field that does not fit ``kind``. ``refusal``: msgspec's sentence."""
    struct = _type_info(kind)
    if not _has_type(document, struct):
        raise InvalidBody(reason=f"it must be {_describe(struct)}")
    found = _PATH.search(refusal)
    _check(document, struct, "", _STEP.finditer(found[1] if found else "") if refusal else None)


def _check(value: Any, kind: inspect.Type, name: str, path: Path) -> None:
    """Check ``value`` at ``name``, its path in the document. Raises E1601 or E1005.

    ``path``: the steps from there to the field that msgspec has refused. If it is None, everything is checked
    until something does not fit.
    """
    match kind:
        case inspect.Metadata():
            _check(value, kind.type, name, path)
        case inspect.UnionType():
            _check_union(value, kind, name, path)
        case inspect.AnyType():
            pass
        case _ if not _has_type(value, kind) or not _is_within_limits(value, kind):
            raise InvalidInput(name=name, expected=_describe(kind), value=value)
        case inspect.StructType():
            _check_struct(value, kind, name, path)
        case inspect.ListType():
            indices = range(len(value)) if path is None else (int(step[2]) for step in islice(path, 1))
            for index in indices:
                _check(value[index], kind.item_type, f"{name}[{index}]", path)
        case inspect.DictType() if path is None or next(path, None):
            for key, item in value.items():
                _check(item, kind.value_type, f"{name}.{key}", path)


def _check_union(value: Any, kind: inspect.UnionType, name: str, path: Path) -> None:
    alternatives = [each for each in _alternatives(kind) if _has_type(value, each)]
    if not alternatives:
        raise InvalidInput(name=name, expected=_describe(kind), value=value)
    tags = {each.tag: each for each in alternatives if isinstance(each, inspect.StructType)}
    if len(tags) < 2:
        _check(value, alternatives[0], name, path)
        return
    tag_field = next(iter(tags.values())).tag_field
    tag = value.get(tag_field)
    if not isinstance(tag, str) or tag not in tags:
        raise InvalidInput(name=f"{name}.{tag_field}", expected=_one_of(tags), value=tag)
    _check_struct(value, tags[tag], name, path)


def _check_struct(value: dict[str, Any], kind: inspect.StructType, name: str, path: Path) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    prefix = f"{name}." if name else ""
    if kind.tag_field is not None and (tag := value.get(kind.tag_field, kind.tag)) != kind.tag:
        raise InvalidInput(name=prefix + kind.tag_field, expected=str(kind.tag), value=tag)
    for step in islice(path or (), 1):
        if step[1] in fields:
            _check(value[step[1]], fields[step[1]].type, prefix + step[1], path)
    for key, item in value.items():
        if key in fields:
            if path is None:
                _check(item, fields[key].type, prefix + key, None)
        elif key != kind.tag_field and kind.forbid_unknown_fields:
            key = key[:_MAX_NAME_CHARACTERS]
            similar = [name for name in _OTHER_NAMES.get(key, ()) if name in fields]
            if key not in _OTHER_NAMES:
                similar = difflib.get_close_matches(key, fields, n=1, cutoff=_SIMILARITY)
            missing = [each.encode_name for each in kind.fields if each.required]
            missing = [name for name in missing if name not in value]
            remedy = "leave it out"
            if neutral := _neutral_values(kind, key):
                remedy = f"leave it out, or send {json.dumps(neutral[0])}"
            elif similar:
                remedy = f"leave it out, or send {similar[0]} if that is meant"
            elif missing:
                remedy = f"leave it out, and send {prefix}{missing[0]}, which is missing"
            raise UnknownField(name=prefix + key, remedy=remedy)
    for field in kind.fields:
        if field.required and field.encode_name not in value:
            raise InvalidInput.missing(prefix + field.encode_name)


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
        case inspect.StrType() if kind.pattern is not None and not re.search(kind.pattern, value):
            return False
        case inspect.IntType() | inspect.FloatType():
            low, high, size = kind.ge, kind.le, value
        case inspect.StrType() | inspect.ListType() | inspect.DictType():
            low, high, size = kind.min_length, kind.max_length, len(value)
        case _:
            return True
    return (low is None or size >= low) and (high is None or size <= high)


def _describe(kind: inspect.Type) -> str:
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
            matching = "" if kind.pattern is None else f" that matches {kind.pattern}"
            return "a string" + _limits(kind.min_length, kind.max_length, " characters") + matching
        case inspect.ListType():
            return "a list" + _limits(kind.min_length, kind.max_length, " items")
        case inspect.BoolType():
            return "true or false"
        case inspect.DictType():
            return "an object" + _limits(kind.min_length, kind.max_length, " keys")
    return "an object"


def _one_of(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))


def _limits(low: float | None, high: float | None, unit: str = "") -> str:
    if unit and (low, high) == (1, None):
        return " that is not empty"
    if low is None:
        return "" if high is None else f" of at most {high}{unit}"
    if high is None:
        return f" of at least {low}{unit}"
    return f" of {low} to {high}{unit}" if unit else f" from {low} to {high}"
