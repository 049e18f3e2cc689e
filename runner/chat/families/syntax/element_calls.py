"""Calls as elements with the names of parameters, which may have elements in them."""

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from runner.chat.families.syntax.arguments import ArgumentsWriter, read_end
from runner.chat.families.syntax.literals import json_of
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.syntax.schema_types import STRING, parts_of, schema_of, types_of
from runner.chat.families.tools import ToolUse

MARK = "]<]minimax[>["
"""Mark before each tag of M3."""
_ITEM = "item"
"""Name of an element of a list."""
_MAX_DEPTH = 64


class ElementCalls:
    """Calls whose parameters are elements with the parameter's name; the value is text or elements."""

    begins = (f"{MARK}<tool_call>",)
    bare = ""
    end = f"{MARK}</tool_call>"
    markers = (*begins, end, MARK)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        is_whole, num_calls = True, 0
        while is_whole and (yield from _tag(reader, '<invoke name="')):
            name = yield from reader.name()
            yield from reader.expect('">')
            reader.start_call(name)
            num_calls += 1
            is_whole = yield from _Elements(reader, tools, name).read()
            reader.begin_trying()
        if not num_calls:
            raise NotACall
        # NOTE: the mark begins with a bracket, which ``read_end`` would leave out.
        if not (yield from reader.marker(self.end)):
            yield from read_end(reader, self.end, is_whole=is_whole)


class _Elements:
    """Reader of the elements of one call."""

    def __init__(self, reader: Reader, tools: ToolUse, name: str) -> None:
        self._reader = reader
        self._writer = ArgumentsWriter(reader, tools, name)
        tool = next((tool for tool in tools.tools if tool.name == name), None)
        self._root: Any = {} if tool is None else tool.parameters
        self._is_guided = tool is not None and tools.is_guided(tool)

    def read(self) -> Reading[bool]:
        """Read elements and the end of the call. False if it was cut off."""
        reader = self._reader
        while (yield from _tag(reader, "<")):
            if (yield from reader.marker("/invoke>")):
                self._writer.close()
                return True
            name = yield from _name(reader)
            schema = schema_of(self._root, name)
            if schema is not None and types_of(schema, self._root) == {STRING}:
                self._writer.begin(name)
                if not (yield from self._text(name)):
                    return False
                self._writer.end()
            elif (value := (yield from self._element(name, schema))) is not None:
                self._writer.value(name, value)
            else:
                return False
        return False

    def _text(self, name: str) -> Reading[bool]:
        """Read text up to the end of an element. False if it was cut off."""
        reader, writer = self._reader, self._writer
        while True:
            reader.copied = writer.copied
            if not (yield from reader.up_to(MARK, writer.text)):
                return False
            if (yield from reader.marker(f"</{name}>")):
                return True
            if reader.is_ended and f"</{name}>".startswith(reader.text[reader.at :]):
                return False
            writer.text(MARK)

    def _element(self, name: str, schema: Any, depth: int = 0) -> Reading[str | None]:
        """Read an element and return its value as JSON; None if it was cut off."""
        reader = self._reader
        texts: list[str] = []
        parts: list[tuple[str, str]] = []
        while (yield from reader.up_to(MARK, texts.append)):
            if (yield from reader.marker(f"</{name}>")):
                return self._of_parts(parts, schema) if parts else self._of_text("".join(texts), schema)
            if depth == _MAX_DEPTH or not (yield from reader.marker("<")):
                texts.append(MARK)
                continue
            part = yield from _name(reader)
            value = yield from self._element(part, self._part(schema, part), depth + 1)
            if value is None:
                return None
            parts.append((part, value))
        return None

    def _part(self, schema: Any, name: str) -> Any:
        """Return the schema of the element ``name``; None if ``schema`` says nothing of it."""
        for part in parts_of(schema, self._root):
            if (found := schema_of(part, name)) is not None or (found := part.get("items")) is not None:
                return found
        return None

    def _of_parts(self, parts: Sequence[tuple[str, str]], schema: Any) -> str:
        """Return a list of items, or an object in which several values of one name are a list."""
        found: dict[str, list[str]] = {}
        for name, value in parts:
            found.setdefault(name, []).append(value)
        types = types_of(schema, self._root)
        if "array" in types and (found.keys() == {_ITEM} or "object" not in types):
            return f"[{', '.join(value for _, value in parts)}]"
        values = {name: each[0] if len(each) == 1 else f"[{', '.join(each)}]" for name, each in found.items()}
        return f"{{{', '.join(f'{encode_basestring(name)}: {value}' for name, value in values.items())}}}"

    def _of_text(self, text: str, schema: Any) -> str:
        types = types_of(schema, self._root)
        if schema is None or types == {STRING}:
            return encode_basestring(text)
        if not text.strip() and STRING not in types and types & {"array", "object"}:
            return "[]" if "array" in types else "{}"
        return json_of(text, schema, self._root, is_json=self._is_guided)


def _tag(reader: Reader, begin: str) -> Reading[bool]:
    """Read the mark and the beginning of a tag, if they are next."""
    yield from reader.space()
    written = reader.markers.written(MARK)
    while not reader.is_ended and (written + begin).startswith(reader.text[reader.at :]):
        yield
    if not reader.text.startswith(written + begin, reader.at):
        return False
    reader.take(reader.at + len(written + begin))
    return True


def _name(reader: Reader) -> Reading[str]:
    pieces: list[str] = []
    yield from reader.up_to(">", pieces.append)
    return "".join(pieces).strip()
