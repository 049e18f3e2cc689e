"""Calls in nested channels, whose markers are special tokens around a name and attributes."""

import re

from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_OPEN, _CLOSE, _SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def channel_begin(name: str) -> str:
    return f"{_OPEN}{name}{_SEPARATOR}"


def channel_end(name: str) -> str:
    return f"{_CLOSE}{name}{_SEPARATOR}"


class ChannelCalls:
    """Calls whose arguments tell their types: text stands as it is, other values are JSON."""

    begins = (channel_begin("tools"),)
    bare = ""
    end = channel_end("tools")
    call, call_end = f"{_OPEN}call", channel_end("call")
    argument, argument_end = f"{_OPEN}argument", channel_end("argument")
    markers = (*begins, end, call, call_end, argument, argument_end, _SEPARATOR)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        yield from reader.space()
        is_whole, num_calls = True, 0
        while is_whole and (yield from reader.marker(self.call)):
            name = (yield from _attributes(reader)).get("tool", "")
            reader.start_call(name)
            num_calls += 1
            is_whole = yield from self._arguments(reader, ArgumentsWriter(reader, tools, name))
            yield from reader.space()
            reader.begin_trying()
        if not num_calls:
            raise NotACall
        yield from read_end(reader, self.end, is_whole=is_whole)

    def _arguments(self, reader: Reader, writer: ArgumentsWriter) -> Reading[bool]:
        """Read arguments and the end of the call. False if it was cut off."""
        while (yield from reader.space()) and (yield from reader.marker(self.argument)):
            try:
                attributes = yield from _attributes(reader)
            except NotACall:
                return False
            writer.begin(attributes.get("key", ""), is_text=attributes.get("type") == "string")
            reader.copied = writer.copied
            if not (yield from reader.up_to(self.argument_end, writer.text)):
                return False
            writer.end()
        is_whole = bool((yield from reader.marker(self.call_end)))
        if is_whole:
            writer.close()
        return is_whole


def _attributes(reader: Reader) -> Reading[dict[str, str]]:
    """Read the attributes of a marker and its end. Raises NotACall if there is no end."""
    pieces: list[str] = []
    if not (yield from reader.up_to(_SEPARATOR, pieces.append)):
        raise NotACall
    found = _ATTRIBUTE.findall("".join(pieces))
    return {name: value.replace("&quot;", '"').replace("&amp;", "&") for name, value in found}
