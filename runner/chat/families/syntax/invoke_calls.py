"""Calls as ``invoke`` tags with ``parameter`` tags, as in DSML, DeepSeek's markup."""

import msgspec

from runner.chat.families.syntax.arguments import ArgumentsWriter, read_arguments, read_end
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.reader import Ends, NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

IS_TEXT = 'string="'
_AFTER_NAME = '"'
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class InvokeCalls(msgspec.Struct, frozen=True):
    section: str
    """Name of the marker around all calls; empty: there is none."""
    prefix: str = ""
    """Beginning of the names of tags for calls and parameters."""
    tells_types: bool = False
    """True if a parameter's tag tells whether its value is text or JSON. Otherwise the tool's schema does."""
    call_tag: str = "invoke"
    parameter_tag: str = "parameter"
    has_cdata: bool = False
    """True if values may stand in XML's CDATA."""
    bare: str = ""

    section_variants: tuple[str, ...] = ()
    """Other names that models write at times."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Markers before calls: a call may stand alone if its tags can't be anything else."""
        return self.sections if self.section and not self.prefix else (*self.sections, self.call)

    @property
    def sections(self) -> tuple[str, ...]:
        return tuple(f"<{section}>" for section in (self.section, *self.section_variants) if section)

    @property
    def end(self) -> str:
        return f"</{self.section}>" if self.section else ""

    @property
    def call(self) -> str:
        return f'<{self.prefix}{self.call_tag} name="'

    @property
    def call_end(self) -> str:
        return f"</{self.prefix}{self.call_tag}>"

    @property
    def parameter(self) -> str:
        return f'<{self.prefix}{self.parameter_tag} name="'

    @property
    def parameter_end(self) -> str:
        return f"</{self.prefix}{self.parameter_tag}>"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.sections[:1], self.end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        is_whole, num_calls = True, 0
        is_call = begin == self.call
        if not is_call and (yield from reader.space()) == "{":  # Some models write the whole call as JSON.
            yield from JsonCalls(end=self.end).read(reader, tools, begin)
            return
        while is_call or (yield from reader.marker(self.call)):
            is_call = False
            name = yield from _name(reader)
            yield from reader.expect(">")
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
        if (yield from reader.space()) == "{":  # Some models write the arguments as JSON.
            is_whole = yield from read_arguments(reader, self._shortened_end)
            yield from reader.space()
            yield from self._call_end(reader)
            return is_whole
        others = self._ends(reader, writer)
        while (yield from reader.space()) and (yield from reader.marker(self.parameter)):
            try:
                key = yield from _name(reader)
                is_text = None
                if (yield from reader.marker(IS_TEXT)):
                    is_text = (yield from _name(reader)) == "true"
                yield from reader.expect(">")
            except NotACall:
                return False
            writer.begin(key, is_text=is_text)
            reader.copied = writer.copied
            if self.has_cdata and (yield from reader.marker(_CDATA)):
                if not (yield from reader.up_to(_CDATA_END, writer.text)):
                    return False
                writer.text = lambda _: None
            if not (yield from reader.up_to(self.parameter_end, writer.text, others)):
                return False
            writer.end()
        has_end = yield from self._call_end(reader)
        if has_end or not reader.is_cut_off(self.end, self.call):
            writer.close()
        return has_end

    def _call_end(self, reader: Reader) -> Reading[bool]:
        has_end = bool((yield from reader.marker(self._shortened_end)))
        if has_end:
            yield from reader.up_to(">", lambda _: None)
        return has_end

    def _ends(self, reader: Reader, writer: ArgumentsWriter) -> Ends:
        """Yield what may end a value that lacks its own end: it hardly ever occurs in values."""

        def parameter() -> Reading[bool]:
            try:
                return writer.may_follow((yield from _name(reader)))
            except NotACall:
                return False

        def end() -> Reading[bool]:
            if not (yield from reader.marker(self.call_end.removeprefix(self._shortened_end), ">")):
                return False
            next_ = yield from reader.space()
            return not next_ or bool((yield from reader.marker(self.call, self.end)))

        def section_end() -> Reading[bool]:
            return not (yield from reader.space())

        return {self.parameter: parameter, self._shortened_end: end, self.end: section_end}

    @property
    def _shortened_end(self) -> str:
        """End of a call as models write it at times."""
        return self.call_end.removesuffix("oke>").removesuffix(">")


def _name(reader: Reader) -> Reading[str]:
    """Read a name, the quotation mark after it, and whitespace. Raises NotACall."""
    name = yield from reader.name()
    yield from reader.expect(_AFTER_NAME)
    yield from reader.space()
    return name
