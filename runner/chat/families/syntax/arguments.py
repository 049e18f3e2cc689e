"""The arguments of a call, and what ends it: read as JSON, or made JSON of other forms."""

import json
from json.encoder import encode_basestring
from typing import Any

from runner.chat.families.parts import CallArguments
from runner.chat.families.syntax.reader import Copy, Emit, NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_STRING = "string"
_CLOSING = "}]"


def read_arguments(reader: Reader, *ends: str) -> Reading[bool]:
    """Read the value of JSON that is the arguments. False if it was cut off by a marker or the end."""
    next_ = yield from reader.space()
    if next_ in ("{", "["):
        return (yield from reader.json(reader.arguments, *ends))
    if next_ == '"':  # Some models write the object as text in a string.
        try:
            reader.arguments((yield from reader.json_string()))
        except NotACall:
            return False
        return True
    pieces: list[str] = []
    is_whole = yield from reader.json(pieces.append, *ends)
    text = "".join(pieces)
    reader.arguments("{}" if text in ("null", "None") else text)
    return is_whole and bool(text)


def read_end(reader: Reader, end: str, *, is_whole: bool) -> Reading[None]:
    """Read the marker after a call, or its beginning at the end of the answer.

    What the model wrote before it is left out if the call was not whole.
    """
    while (next_ := (yield from reader.space())) and next_ in _CLOSING:
        reader.take(reader.at + 1)
    if end and not (yield from reader.marker(end)) and not is_whole:
        yield from _skip_to(reader, end)
    elif reader.is_ended:  # There may be the beginning of a marker.
        reader.take(len(reader.text))


def _skip_to(reader: Reader, end: str) -> Reading[None]:
    """Up to the marker ``end``, which is read, or before any marker that is a token."""
    written = reader.markers.written(end)
    stops = reader.markers.stops(end)
    while True:
        match = stops.search(reader.text, reader.at)
        if match is not None and match[1] is not None:
            reader.take(match.end() if match[1] == written else match.start())
            return
        reader.take(len(reader.text) if match is None or reader.is_ended else match.start())
        if reader.is_ended:
            return
        yield


class ArgumentsWriter:
    """Writes one call's arguments as JSON, of texts whose types the tool's schema tells."""

    def __init__(self, reader: Reader, tools: ToolUse, name: str) -> None:
        self._emit = reader.arguments
        schema = next((tool.parameters for tool in tools.tools if tool.name == name), {})
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._separator = "{"
        self.is_string = True
        self._pieces: list[str] = []
        self.text: Emit = self._string
        """Takes a piece of the value."""

    def begin(self, key: str, *, is_text: bool | None = None) -> None:
        """``is_text``: None if the schema tells it."""
        self._emit(f"{self._separator}{encode_basestring(key)}: ")
        self._separator = ", "
        if is_text is None:
            is_text = key not in self._properties or is_text_by(self._properties[key])
        self.is_string = is_text
        self.text = self._string if is_text else self._pieces.append
        if is_text:
            self._emit('"')

    def _string(self, text: str) -> None:
        self._emit(encode_basestring(text)[1:-1])

    @property
    def copied(self) -> Copy | None:
        """What a piece of the value is, if that depends on nothing else."""
        return string_part if self.is_string else None

    def end(self, *, is_on_lines: bool = False) -> None:
        """The value is whole. ``is_on_lines``: line breaks stand around it, which are no part of it."""
        if self.is_string:
            self._emit('"')
            return
        value = "".join(self._pieces)
        self._emit(_json(value.removeprefix("\n").removesuffix("\n") if is_on_lines else value))
        self._pieces.clear()

    def close(self) -> None:
        """All arguments are there."""
        self._emit("{}" if self._separator == "{" else "}")


def string_part(text: str) -> CallArguments:
    """A piece of a string, as JSON."""
    return CallArguments(encode_basestring(text)[1:-1])


def is_text_by(schema: Any) -> bool:
    """Whether a value of this schema is written as it is, and not as JSON."""
    return _types(schema) == {_STRING}


def _types(schema: Any) -> set[str]:
    """The types that a schema names; empty if it names none."""
    if not isinstance(schema, dict):
        return set()
    named, values = schema.get("type"), schema.get("enum")
    if named is None and isinstance(values, list) and values:
        return {_STRING} if all(isinstance(value, str) for value in values) else set()
    if isinstance(named, str):
        return {named}
    return {str(each) for each in named} if isinstance(named, list) else set()


def _json(text: str) -> str:
    """``text`` if it is JSON or one of Python's constants, else as a string of JSON."""
    stripped = text.strip()
    if is_json(stripped):
        return stripped
    constants = {"True": "true", "False": "false", "None": "null"}
    return constants.get(stripped) or encode_basestring(text)


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_reject)
    except (ValueError, RecursionError):
        return False
    return True


def _reject(constant: str) -> None:
    raise ValueError(constant)
