"""Calls as objects of JSON, each with a tool's name as its key and the arguments as its value."""

from runner.chat.families.syntax.arguments import read_arguments, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse


class KeyedCalls:
    begins = ("<|tools_prefix|>",)
    bare = ""
    end = "<|tools_suffix|>"
    markers = (*begins, end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        yield from _expect(reader, "[")
        is_whole = True
        while is_whole:
            yield from _expect(reader, "{")
            name = yield from reader.json_string()
            yield from _expect(reader, ":")
            reader.start_call(name)
            is_whole = yield from read_arguments(reader, self.end)
            if is_whole and (yield from reader.space()) == "}":
                reader.take(reader.at + 1)
            yield from reader.space()
            if not (yield from reader.marker(",")):
                break
            reader.begin_trying(",")
        yield from read_end(reader, self.end, is_whole=is_whole)


def _expect(reader: Reader, character: str) -> Reading[None]:
    if (yield from reader.space()) != character:
        raise NotACall
    reader.take(reader.at + 1)
    yield from reader.space()
