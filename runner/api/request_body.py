"""A request's body: bytes within the limit, JSON, and the fields of its endpoint."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from errors.api import BodyTooLarge, InvalidBody, UnknownField
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.api.openai.bodies import Body

B = TypeVar("B", bound=Body)

_MOST_DIGITS = 18
_LIKE = 0.8
"""How much an unknown field must be like one for that to be meant, by difflib."""
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_WRONG = re.compile(r"Expected (.*?)(?:, got .*?)?(?: - at `\$(.*)`)?$")
_AT = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_WORDS = {
    "`": "",
    "array": "a list",
    "object": "an object",
    " | null": "",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    " | ": " or ",
}


async def read_body(request: Request, kind: type[B], max_bytes: int) -> B:
    """Raises E1606, E1600, E1601, or E1005 with the field; ClientDisconnect if the client leaves."""
    content = await _read(request, max_bytes)
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as exc:
            # NOTE: msgspec validates as it reads: what follows may be no JSON, which is found only now.
            raise _wrong_field(str(exc), content, kind) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(reason=f"it is not JSON ({exc})".replace("\n", " ")) from exc


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _MOST_DIGITS or int(length) > max_bytes):
        raise BodyTooLarge(max_bytes=max_bytes)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise BodyTooLarge(max_bytes=max_bytes)
    return bytes(content)


def _wrong_field(text: str, content: bytes, kind: type[Body]) -> CodedError:
    """msgspec's words as ours: which field, what it must be, what it is."""
    place = found[1].lstrip(".") if (found := _AT.search(text)) else ""
    if unknown := _UNKNOWN.match(text):
        fields = () if place else kind.__struct_fields__
        near = difflib.get_close_matches(unknown[1], fields, n=1, cutoff=_LIKE)
        remedy = f"leave it out, or send {near[0]} if that is meant" if near else "leave it out"
        return UnknownField(name=f"{place}.{unknown[1]}".lstrip("."), remedy=remedy)
    if missing := _MISSING.match(text):
        return InvalidInput(name=f"{place}.{missing[1]}".lstrip("."), expected="given", value=None)
    if place and text.startswith("Invalid "):
        expected = "one of the values that this server knows"
        return InvalidInput(name=place, expected=expected, value=_value_at(content, place))
    wrong = _WRONG.match(text)
    if not place:
        return InvalidBody(reason=_in_words(wrong[0]) if wrong else text)
    expected = _in_words(wrong[1]) if wrong else "one of those that GET /openapi.json lists"
    return InvalidInput(name=place, expected=expected, value=_value_at(content, place))


def _in_words(expected: str) -> str:
    for word, ours in _WORDS.items():
        expected = expected.replace(word, ours)
    return expected


def _value_at(content: bytes, place: str) -> Any:
    """What stands there; from where a list's place is not told, the list."""
    value = msgspec.json.decode(content)
    for step in _STEP.finditer("." + place):
        name, index = step[1], step[2]
        if name is not None and isinstance(value, dict):
            value = value.get(name)
        elif index is not None and isinstance(value, list):
            value = value[int(index)]
        else:
            break
    return value
