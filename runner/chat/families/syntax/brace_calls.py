"""Calls as ``call:NAME{KEY:VALUE, ..}``, with markers around texts."""

from json.encoder import encode_basestring

import msgspec

from runner.chat.families.markers import is_token
from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.literals import literal_json
from runner.chat.families.syntax.reader import Emit, Reader, Reading
from runner.chat.families.tools import ToolUse

_CALL = "call:"
_ENDS = ",}]"
_MAX_DEPTH = 64


class BraceCalls(msgspec.Struct, frozen=True):
    begin: str
    end: str
    quote: str
    """Marker before and after a text."""
    tells_types: bool
    """True if only texts are quoted. Otherwise the tool's schema tells types."""
    bare: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.end, self.quote)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        yield from reader.space()
        yield from reader.expect(_CALL)
        name = yield from reader.name()
        yield from reader.expect("{")
        reader.start_call(name)
        writer = ArgumentsWriter(reader, tools, name)
        is_whole = yield from self._arguments(reader, writer)
        if is_whole:
            writer.close()
        yield from read_end(reader, self.end, is_whole=is_whole)

    def _arguments(self, reader: Reader, writer: ArgumentsWriter) -> Reading[bool]:
        """Read arguments and the brace after them, which may be missing. False if they were cut off."""
        end = reader.markers.written(self.end)
        while (next_ := (yield from reader.space())) not in ("", "}"):
            if next_ == end:  # It is a token.
                return True
            if (key := (yield from self._key(reader))) is None:
                return False
            if (yield from reader.marker(self.quote)):
                writer.begin(key, is_text=True if self.tells_types else None)
                reader.copied = writer.copied
                if not (yield from reader.up_to(self.quote, writer.text)):
                    return False
                writer.end()
            else:
                pieces: list[str] = []
                if not (yield from self._value(reader, pieces.append)):
                    return False
                writer.begin(key, is_text=False)
                writer.text("".join(pieces))
                writer.end()
            yield from reader.space()
            yield from reader.marker(",")
        reader.take(reader.at + len(next_))
        return bool(next_)

    def _key(self, reader: Reader) -> Reading[str | None]:
        """Read a key and the colon after it. None if it was cut off."""
        pieces: list[str] = []
        yield from reader.marker(self.quote)
        if not (yield from reader.up_to(":", pieces.append)):
            return None
        yield from reader.space()
        return "".join(pieces).removesuffix(self.quote).strip(" \"'")

    def _value(self, reader: Reader, emit: Emit, depth: int = 0) -> Reading[bool]:
        """Read a value and emit it as JSON. False if it was cut off."""
        next_ = yield from reader.space()
        if (yield from reader.marker(self.quote)):
            emit('"')
            is_whole = yield from reader.up_to(self.quote, lambda text: emit(encode_basestring(text)[1:-1]))
            emit('"')
            return bool(is_whole)
        if next_ == '"':
            return (yield from reader.json(emit, self.end))
        if next_ in ("{", "[") and depth < _MAX_DEPTH:
            reader.take(reader.at + 1)
            return (yield from self._values(reader, emit, next_, depth))
        return (yield from _scalar(reader, emit, depth))

    def _values(self, reader: Reader, emit: Emit, opening: str, depth: int) -> Reading[bool]:
        """Read the values of an object or a list, after its opening bracket."""
        closing = "}" if opening == "{" else "]"
        separator = opening
        while (next_ := (yield from reader.space())) not in ("", closing):
            emit(separator)
            separator = ", "
            if opening == "{":
                if (key := (yield from self._key(reader))) is None:
                    return False
                emit(f"{encode_basestring(key)}: ")
            elif next_ == "}":
                return False
            if not (yield from self._value(reader, emit, depth + 1)):
                return False
            yield from reader.space()
            yield from reader.marker(",")
        reader.take(reader.at + len(next_))
        emit(f"{opening}{closing}" if separator == opening else closing)
        return bool(next_)


def _scalar(reader: Reader, emit: Emit, depth: int) -> Reading[bool]:
    """Read a number, a name, or a text without quotes. The tool's schema tells a whole argument's type."""
    pieces: list[str] = []
    while (next_ := (yield from reader.peek())) and next_ not in _ENDS and not is_token(next_):
        pieces.append(reader.take(reader.at + 1))
    emit("".join(pieces).strip() if depth == 0 else literal_json("".join(pieces).strip()))
    return next_ != "" and (next_ in _ENDS or depth == 0)
