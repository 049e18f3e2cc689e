"""GLM 4.5 to 4.7: calls as a name with keys and values."""

from __future__ import annotations

import msgspec

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class KeyValueCalls(msgspec.Struct, frozen=True):
    begins: tuple[str, ...] = (_CALL,)
    bare: str = ""
    end: str = _CALL_END
    key: str = _KEY
    key_end: str = _KEY_END
    value: str = _VALUE
    value_end: str = _VALUE_END

    @property
    def markers(self) -> tuple[str, ...]:
        return (_CALL, _CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        name = yield from reader.name()
        yield from reader.space()
        has_arguments = yield from reader.marker(_KEY)
        if not has_arguments and not (yield from reader.marker(_CALL_END)):
            raise NotACall
        reader.start_call(name)
        writer = ArgumentsWriter(reader, tools, name)
        is_whole = not has_arguments or (yield from self._arguments(reader, writer))
        if is_whole:
            writer.close()
        if has_arguments:
            yield from read_end(reader, _CALL_END, is_whole=is_whole)

    def _arguments(self, reader: Reader, writer: ArgumentsWriter) -> Reading[bool]:
        """Read keys and values, after the marker of the first key."""
        while True:
            key: list[str] = []
            if not (yield from reader.up_to(_KEY_END, key.append)):
                return False
            yield from reader.space()
            if not (yield from reader.marker(_VALUE)):
                return False
            writer.begin("".join(key).strip())
            reader.copied = writer.copied
            if not (yield from reader.up_to(_VALUE_END, writer.text)):
                return False
            writer.end()
            yield from reader.space()
            if not (yield from reader.marker(_KEY)):
                return not reader.is_ended


GLM = Family(name="glm", calls=KeyValueCalls(), reasoning=Span("<think>", "</think>"))
