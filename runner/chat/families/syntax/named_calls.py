"""Calls as a name, a marker and an object of JSON, each between markers of its own."""

import msgspec

from runner.chat.families.markers import is_token
from runner.chat.families.syntax.arguments import read_arguments, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

NAME, PART = "<|tool_call:name|>", "<|begin|>assistant"
GUIDED_ID = "call"
"""Id of all calls in guided answers."""


class NamedCalls(msgspec.Struct, frozen=True):
    begin: str
    """Marker before each call."""
    separator: str
    """Marker between name and arguments."""
    end: str = ""
    """Marker after each call."""
    section_begin: str = ""
    """Marker before all calls."""
    section_end: str = ""
    section_variants: tuple[tuple[str, str], ...] = ()
    """Other markers before and after all calls, which models write at times."""
    before_name: str = ""
    """Text and markers that the family's template writes, if not ``begin``."""
    before_arguments: str = ""
    """Text and markers that the family's template writes, if not ``separator``."""
    is_numbered: bool = False
    """True if a colon and the number of the call follow the name."""
    after_arguments: str = ""
    """Marker before ``end``."""
    between: str = ""
    """Text between calls."""
    bare: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin, *(begin for begin, _ in self._sections))

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.separator, self.end, *(each for pair in self._sections for each in pair))

    @property
    def _sections(self) -> tuple[tuple[str, str], ...]:
        own = ((self.section_begin, self.section_end),) if self.section_begin else ()
        return (*own, *self.section_variants)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        if begin != reader.markers.written(self.begin):
            yield from reader.space()
            if (yield from reader.marker(*(end for _, end in self._sections))):
                return  # There was no call.
            yield from reader.expect(self.begin)
        while True:
            yield from self._call(reader)
            yield from reader.space()
            if (yield from reader.marker(*(end for _, end in self._sections))):
                return
            if not (yield from reader.marker(self.begin)):
                return
            reader.begin_trying(reader.markers.written(self.begin))

    def _call(self, reader: Reader) -> Reading[None]:
        name, id_ = yield from self._header(reader)
        is_sure = is_token(reader.markers.written(self.separator))
        if (yield from reader.space()) not in ('{"' + self.end[:1]) and not is_sure:
            raise NotACall  # It is text about a call.
        reader.start_call(name, id_)
        is_whole = yield from read_arguments(reader, self.end, self.after_arguments.strip())
        if self.after_arguments:
            yield from reader.space()
            yield from reader.marker(self.after_arguments.strip())
        yield from read_end(reader, self.end, is_whole=is_whole)

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        """Read name and separator. Return the name, and the id if the family writes one."""
        name = yield from reader.name()
        yield from reader.space()
        yield from reader.expect(self.separator)
        return name, ""


class IdentifiedCalls(NamedCalls, frozen=True):
    """Calls with an id before the name, each after a marker of its own."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, NAME)

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        id_ = yield from reader.name()
        yield from reader.expect(NAME)
        name, _ = yield from super()._header(reader)
        return name, "" if id_ == GUIDED_ID else id_
