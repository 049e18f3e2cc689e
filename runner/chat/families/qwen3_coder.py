"""Qwen3-Coder, Qwen 3.5 and Seed-OSS: calls as functions with parameters, in XML without escapes."""

import msgspec

from runner.chat.families.family import Family, Span
from runner.chat.families.parts import CallArguments
from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end, string_part
from runner.chat.families.syntax.reader import Ends, NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse


class FunctionCalls(msgspec.Struct, frozen=True):
    """Calls whose marker models sometimes leave out: then the name has to be that of a tool."""

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    function: str = "<function="
    function_end: str = "</function>"
    parameter: str = "<parameter="
    parameter_end: str = "</parameter>"
    bare: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin, self.function)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        is_marked = begin != self.function
        if is_marked:
            yield from reader.space()
            yield from reader.expect(self.function)
        while True:
            name = yield from _key(reader)
            if not is_marked and all(name != tool.name for tool in tools.tools):
                raise NotACall
            reader.start_call(name)
            is_whole = yield from self._arguments(reader, tools, ArgumentsWriter(reader, tools, name))
            yield from reader.space()
            if not (yield from reader.marker(self.function)):
                break
            reader.begin_trying(self.function)
        yield from read_end(reader, self.end, is_whole=is_whole)

    def _arguments(self, reader: Reader, tools: ToolUse, writer: ArgumentsWriter) -> Reading[bool]:
        while (yield from reader.space()) and (yield from reader.marker(self.parameter)):
            try:
                writer.begin((yield from _key(reader)))
            except NotACall:
                return False
            lines = _Lines(writer, reader)
            emit = lines.text if writer.is_string else writer.text
            others = self._ends(reader, tools, writer, lines)
            if not (yield from reader.up_to(self.parameter_end, emit, others)):
                return False
            lines.end()
            writer.end(is_on_lines=True)
        is_whole = bool((yield from reader.marker(self.function_end))) or not reader.is_cut_off(
            self.begin, self.end
        )
        if is_whole:
            writer.close()
        return is_whole

    def _ends(self, reader: Reader, tools: ToolUse, writer: ArgumentsWriter, lines: "_Lines") -> Ends:
        """Yield what may end a value that lacks its own end: it hardly ever occurs in values."""
        names = {tool.name for tool in tools.tools}

        def parameter() -> Reading[bool]:
            is_in_a_line = lines.are_separate and not reader.tries_on_line
            return writer.may_follow((yield from try_key())) and not is_in_a_line

        def function() -> Reading[bool]:
            return (yield from try_key()) in names

        def try_key() -> Reading[str]:
            try:
                return (yield from _key(reader))
            except NotACall:
                return ""

        def begin() -> Reading[bool]:
            yield from reader.space()
            return bool((yield from reader.marker(self.function))) and (yield from function())

        def end() -> Reading[bool]:
            return not (yield from reader.space()) or (yield from reader.marker(self.begin)) != ""

        def function_end() -> Reading[bool]:
            next_ = yield from reader.space()
            return not next_ or bool((yield from reader.marker(self.end, *self.begins)))

        return {
            self.parameter: parameter,
            self.function_end: function_end,
            self.function: function,
            self.begin: begin,
            self.end: end,
        }


class _Lines:
    """Text of a string, less a line break at its beginning and then one at its end."""

    def __init__(self, writer: ArgumentsWriter, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
        self._is_begun = False
        self._is_on_lines = True
        self._held = ""

    @property
    def are_separate(self) -> bool:
        """True if the text has lines of its own, so that a parameter behind it has them, too."""
        return self._is_begun and self._is_on_lines

    def end(self) -> None:
        if self._held and not self._is_on_lines:
            self._writer.text(self._held)

    def text(self, text: str) -> None:
        if text and not self._is_begun:
            self._is_begun = True
            self._is_on_lines = text.startswith("\n")
            text = text.removeprefix("\n")
        if text:
            text = self._held + text
            self._held = "\n" if text.endswith("\n") else ""
            self._writer.text(text.removesuffix("\n"))
            self._reader.copied = self._part

    def _part(self, text: str) -> CallArguments:
        """Take text without line breaks: before one there may be a marker."""
        text, self._held = self._held + text, ""
        return string_part(text)


def _key(reader: Reader) -> Reading[str]:
    """Read a name and the bracket after it. Raises NotACall."""
    name = yield from reader.name()
    yield from reader.expect(">")
    return name


QWEN3_CODER = Family(name="qwen3-coder", calls=FunctionCalls(), reasoning=Span("<think>", "</think>"))
SEED_OSS = Family(
    "seed-oss", FunctionCalls("<seed:tool_call>", "</seed:tool_call>"), Span("<seed:think>", "</seed:think>")
)
