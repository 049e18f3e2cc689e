"""GLM 4.5 to 4.7, K2-Horizon, LongCat Lite and Hunyuan 3: calls as a name with keys and values."""

import msgspec

from runner.chat.families.family import THINK, Family, Span
from runner.chat.families.markers import is_token
from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.reader import Ends, NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse


class KeyValueCalls(msgspec.Struct, frozen=True):
    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    section_begin: str = ""
    """Marker before all calls, if they are in a section."""
    section_end: str = ""
    after_name: str = ""
    """Marker that may stand after the name."""
    type_begin: str = ""
    """Marker before a type that may stand between a key and its value."""
    type_end: str = ""
    bare: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.section_begin, self.begin) if self.section_begin else (self.begin,)

    @property
    def markers(self) -> tuple[str, ...]:
        own = (self.end, self.key, self.key_end, self.value, self.value_end)
        return (*self.begins, *own, self.section_end, self.after_name, self.type_begin, self.type_end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        is_section = begin != reader.markers.written(self.begin)
        if is_section:
            yield from reader.space()
            yield from reader.expect(self.begin)
        yield from self._call(reader, tools)
        while is_section and (yield from reader.space()) and (yield from reader.marker(self.begin)):
            reader.begin_trying(reader.markers.written(self.begin))
            yield from self._call(reader, tools)
        if is_section:
            yield from read_end(reader, self.section_end, is_whole=True)

    def _call(self, reader: Reader, tools: ToolUse) -> Reading[None]:
        if self.section_begin and (yield from reader.space()) == "{":
            yield from JsonCalls((self.begin,), self.end).read(reader, tools, self.begin)
            return
        name = yield from reader.name()
        yield from reader.space()
        if (yield from reader.marker(self.after_name)):
            yield from reader.space()
        has_arguments = yield from reader.marker(self.key)
        if not has_arguments and not (yield from reader.marker(self.end)):
            raise NotACall
        reader.start_call(name)
        writer = ArgumentsWriter(reader, tools, name)
        is_whole = not has_arguments or (yield from self._arguments(reader, writer))
        if is_whole:
            writer.close()
        if has_arguments:
            yield from read_end(reader, self.end, is_whole=is_whole)

    def _arguments(self, reader: Reader, writer: ArgumentsWriter) -> Reading[bool]:
        """Read keys and values, after the marker of the first key."""
        others = self._ends(reader, writer)
        while True:
            key: list[str] = []
            if not (yield from reader.up_to(self.key_end, key.append, {self.value: _always})):
                return False
            yield from reader.space()
            is_text = yield from self._is_text(reader)
            next_ = yield from reader.space()
            has_begin = yield from reader.marker(self.value)
            if not has_begin and (not next_ or is_token(next_) or self._is_cut_off(reader)):
                return False
            writer.begin("".join(key).strip(), is_text=is_text)
            reader.copied = writer.copied
            if not (yield from reader.up_to(self.value_end, writer.text, others)):
                return False
            writer.end()
            yield from reader.space()
            if not (yield from reader.marker(self.key)):
                return not reader.is_cut_off(self.end)

    def _ends(self, reader: Reader, writer: ArgumentsWriter) -> Ends:
        """Yield what may end a value that lacks its own end: it hardly ever occurs in values."""

        def key() -> Reading[bool]:
            try:
                name = yield from reader.name()
            except NotACall:
                return False
            return bool((yield from reader.marker(self.key_end))) and writer.may_follow(name)

        def end() -> Reading[bool]:
            return not (yield from reader.space()) or (yield from reader.marker(*self.begins)) != ""

        return {self.key: key, self.end: end}

    def _is_cut_off(self, reader: Reader) -> bool:
        """Return True if the answer ends in a marker before a value."""
        rest = reader.text[reader.at :]
        begins = (self.value, self.type_begin)
        return reader.is_ended and any(each.startswith(rest) for each in begins)

    def _is_text(self, reader: Reader) -> Reading[bool | None]:
        """Read the type of a value. Return True for a string, None if there is no type."""
        if not (yield from reader.marker(self.type_begin)):
            return None
        pieces: list[str] = []
        yield from reader.up_to(self.type_end, pieces.append)
        yield from reader.space()
        return "".join(pieces).strip() == "string"


def _always() -> Reading[bool]:
    yield from ()
    return True


GLM = Family("glm", KeyValueCalls(), THINK)
K2_HORIZON = Family(
    name="k2-horizon",
    calls=KeyValueCalls(
        *("<ifm|tool_call>", "</ifm|tool_call>", "<ifm|arg_key>", "</ifm|arg_key>"),
        *("<ifm|arg_value>", "</ifm|arg_value>", "<ifm|tool_calls>", "</ifm|tool_calls>"),
        type_begin="<ifm|arg_type>",
        type_end="</ifm|arg_type>",
    ),
    reasoning=Span("<ifm|think>", "</ifm|think>"),
)
LONGCAT_LITE = Family(
    name="longcat-lite",
    calls=KeyValueCalls(
        *("<longcat_tool_call>", "</longcat_tool_call>", "<longcat_arg_key>", "</longcat_arg_key>"),
        *("<longcat_arg_value>", "</longcat_arg_value>"),
    ),
    reasoning=Span("<longcat_think>", "</longcat_think>"),
)


def hunyuan_3(suffix: str) -> Family:
    """Make Hunyuan 3, whose markers end with a text that depends on the checkpoint."""

    def span(name: str) -> tuple[str, str]:
        return f"<{name}{suffix}>", f"</{name}{suffix}>"

    begin, end = span("tool_call")
    calls = KeyValueCalls(
        *(begin, end, *span("arg_key")), *span("arg_value"), *span("tool_calls"), f"<tool_sep{suffix}>"
    )
    return Family("hunyuan-3", calls, Span(*span("think")))


HUNYUAN_3 = hunyuan_3(":opensource")
