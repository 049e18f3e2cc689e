"""GLM 4.5 to 4.7: calls as a name with keys and values."""

import msgspec

from runner.chat.families.family import Family, Span
from runner.chat.families.markers import is_token
from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.reader import Ends, NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse


class KeyValueCalls(msgspec.Struct, frozen=True):
    begins: tuple[str, ...] = ("<tool_call>",)
    end: str = "</tool_call>"
    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    bare: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.begins, self.end, self.key, self.key_end, self.value, self.value_end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        name = yield from reader.name()
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
            next_ = yield from reader.space()
            if not (yield from reader.marker(self.value)) and (not next_ or is_token(next_)):
                return False
            writer.begin("".join(key).strip())
            reader.copied = writer.copied
            if not (yield from reader.up_to(self.value_end, writer.text, others)):
                return False
            writer.end()
            yield from reader.space()
            if not (yield from reader.marker(self.key)):
                return not reader.is_cut_off(self.end)

    def _ends(self, reader: Reader, writer: ArgumentsWriter) -> Ends:
        """What follows a value whose own end is missing, and hardly stands in a value."""

        def key() -> Reading[bool]:
            try:
                name = yield from reader.name()
            except NotACall:
                return False
            return bool((yield from reader.marker(self.key_end))) and writer.may_follow(name)

        def end() -> Reading[bool]:
            return not (yield from reader.space()) or (yield from reader.marker(*self.begins)) != ""

        return {self.key: key, self.end: end}


def _always() -> Reading[bool]:
    yield from ()
    return True


GLM = Family(name="glm", calls=KeyValueCalls(), reasoning=Span("<think>", "</think>"))
