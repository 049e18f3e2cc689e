"""Arguments of a call, and what ends it: read as JSON, or made JSON of other forms."""

import json
from json.encoder import encode_basestring
from typing import Any

from runner.chat.families.parts import CallArguments
from runner.chat.families.syntax.literals import json_of
from runner.chat.families.syntax.reader import Copy, Emit, NotACall, Reader, Reading
from runner.chat.families.syntax.schema_types import STRING, is_text_by, schema_of, types_of
from runner.chat.families.tools import ToolUse

_CLOSING = "}]"
_OBJECT, _STRING_SCHEMA = {"type": "object"}, {"type": "string"}
_WRAPPERS = ("arguments", "input")
"""Parameters in which models write all arguments at once, if the tool has no such parameter."""


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
    is_left_out = bool(next_) and not text
    reader.arguments("{}" if text in ("null", "None") or is_left_out else text)
    return is_whole and (bool(text) or is_left_out)


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
    """Read up to and with the marker ``end``, or to any marker that is a token, which is not read."""
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
    """Writer of one call's arguments as JSON, from texts whose types the tool's schema tells."""

    def __init__(self, reader: Reader, tools: ToolUse, name: str) -> None:
        self._emit = reader.arguments
        tool = next((tool for tool in tools.tools if tool.name == name), None)
        self._parameters: dict[str, Any] = {} if tool is None else tool.parameters
        self._is_guided = tool is not None and tools.is_guided(tool)
        properties = self._parameters.get("properties")
        self._names = frozenset(properties if isinstance(properties, dict) else ())
        self._written: set[str] = set()
        self._key = ""
        self._is_text: bool | None = None
        self._wrapped: str | None = None
        """Value of a parameter that may be all arguments."""
        self.is_string = True
        self._pieces: list[str] = []
        self.text: Emit = self._string
        """Function that takes a piece of the value."""

    def may_follow(self, name: str) -> bool:
        """Return True if a parameter of this name is likely: the tool has it, and it is not written yet."""
        return name not in self._written and (name in self._names or not self._names)

    def begin(self, key: str, *, is_text: bool | None = None) -> None:
        """Begin an argument. ``is_text``: what the model says of the value. None if it says nothing."""
        self._end_wrapped()
        self._key, self._is_text = key, is_text
        self.is_string = not self._is_wrapper and self._is_string()
        self.text = self._string if self.is_string else self._pieces.append
        if not self._is_wrapper:
            self._write_key()

    def _write_key(self) -> None:
        self._emit(f"{', ' if self._written else '{'}{encode_basestring(self._key)}: ")
        self._written.add(self._key)
        if self.is_string:
            self._emit('"')

    @property
    def _is_wrapper(self) -> bool:
        is_unknown = bool(self._names) and self._key not in self._names
        return is_unknown and self._key in _WRAPPERS and not self._written and not self._is_guided

    def _is_string(self) -> bool:
        """Return True if the value is a string whatever it is, so that its pieces can be written at once."""
        schema = schema_of(self._parameters, self._key)
        if schema is None:
            return self._is_text is not False
        if self._is_guided:
            return is_text_by(schema) if self._is_text is None else self._is_text
        types = types_of(schema, self._parameters)
        return STRING in types if self._is_text else types == {STRING} and self._is_text is None

    def _string(self, text: str) -> None:
        self._emit(encode_basestring(text)[1:-1])

    @property
    def copied(self) -> Copy | None:
        """Function for what a piece of the value is, if that depends on nothing else."""
        return string_part if self.is_string else None

    def end(self, *, is_on_lines: bool = False) -> None:
        """End the value. ``is_on_lines``: line breaks stand around it, which are no part of it."""
        if self.is_string:
            self._emit('"')
            return
        value = "".join(self._pieces)
        self._pieces.clear()
        if is_on_lines and value.startswith("\n"):
            value = value.removeprefix("\n").removesuffix("\n")
        if self._is_wrapper:
            self._wrapped = value
        else:
            self._write_value(value)

    def _write_value(self, text: str) -> None:
        schema = schema_of(self._parameters, self._key)
        is_json = self._is_guided or self._is_text is False
        if schema is None and not is_json:
            schema = _STRING_SCHEMA
        self._emit(json_of(text, schema, self._parameters, is_json=is_json))

    def _end_wrapped(self) -> None:
        """Write the value that could have been all arguments as that of a parameter."""
        text, self._wrapped = self._wrapped, None
        if text is not None:
            self._write_key()
            self._write_value(text)

    def value(self, key: str, json_: str) -> None:
        """Write a whole argument, whose value is JSON already."""
        self._end_wrapped()
        self._key, self.is_string = key, False
        self._write_key()
        self._emit(json_)

    def close(self) -> None:
        if self._wrapped is not None:
            made = json_of(self._wrapped, _OBJECT, _OBJECT)
            if made.startswith("{") and json.loads(made).keys() <= self._names:
                self._emit(made)
                return
        self._end_wrapped()
        self._emit("}" if self._written else "{}")


def string_part(text: str) -> CallArguments:
    """Return a piece of a string, as JSON."""
    return CallArguments(encode_basestring(text)[1:-1])
