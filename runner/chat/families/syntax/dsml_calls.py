"""Calls in DSML, DeepSeek's markup, whose parameters tell whether they are text or JSON."""

import msgspec

from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_IS_TEXT, _AFTER_NAME = 'string="', '"'
_END_BEGINS = "</｜DSML｜inv"
"""Models shorten the marker after a call."""


class DsmlCalls(msgspec.Struct, frozen=True):
    section: str
    """The name of the marker around all calls."""
    bare: str = ""
    call: str = '<｜DSML｜invoke name="'
    call_end: str = "</｜DSML｜invoke>"
    parameter: str = '<｜DSML｜parameter name="'
    parameter_end: str = "</｜DSML｜parameter>"

    @property
    def begins(self) -> tuple[str, ...]:
        return (f"<｜DSML｜{self.section}>",)

    @property
    def end(self) -> str:
        return f"</｜DSML｜{self.section}>"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.begins, self.end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        is_whole, num_calls = True, 0
        yield from reader.space()
        while is_whole and (yield from reader.marker(self.call)):
            name = yield from _name(reader)
            yield from _expect(reader, ">")
            reader.start_call(name)
            num_calls += 1
            is_whole = yield from self._arguments(reader, ArgumentsWriter(reader, tools, name))
            yield from reader.space()
            reader.begin_trying()
        if not num_calls:
            raise NotACall
        yield from read_end(reader, self.end, is_whole=is_whole)

    def _arguments(self, reader: Reader, writer: ArgumentsWriter) -> Reading[bool]:
        """Read parameters and the end of the call. False if it was cut off."""
        while (yield from reader.space()) and (yield from reader.marker(self.parameter)):
            try:
                key = yield from _name(reader)
                is_text = None
                if (yield from reader.marker(_IS_TEXT)):
                    is_text = (yield from _name(reader)) == "true"
                yield from _expect(reader, ">")
            except NotACall:
                return False
            writer.begin(key, is_text=is_text)
            reader.copied = writer.copied
            if not (yield from reader.up_to(self.parameter_end, writer.text)):
                return False
            writer.end()
        is_whole = bool((yield from reader.marker(_END_BEGINS)))
        if is_whole:
            writer.close()
            yield from reader.up_to(">", lambda _: None)
        return is_whole


def _name(reader: Reader) -> Reading[str]:
    """Read a name, the quotation mark after it, and whitespace. Raises NotACall."""
    name = yield from reader.name()
    yield from _expect(reader, _AFTER_NAME)
    yield from reader.space()
    return name


def _expect(reader: Reader, text: str) -> Reading[None]:
    if not (yield from reader.marker(text)):
        raise NotACall
