"""Llama 4, LFM2, OLMo 3 and others: calls in Python's syntax, with keyword arguments."""

import json

import msgspec

from runner.chat.families.family import THINK, Family
from runner.chat.families.syntax.arguments import read_end
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.literals import literal_json
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.syntax.value_scan import Scan, python_stops
from runner.chat.families.tools import ToolUse


class PythonCalls(msgspec.Struct, frozen=True):
    """Calls in Python's syntax, which after a marker may stand without a list, on lines of their own."""

    begins: tuple[str, ...] = ("<|python_start|>",)
    end: str = "<|python_end|>"
    bare: str = "["
    is_list: bool = True
    """True if the template tells the model to write a list."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.begins, self.end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        yield from reader.space()
        is_list = bool((yield from reader.marker("[")))
        if (yield from reader.space()) == "{":  # Llama 4 and LFM2 write JSON, too.
            yield from JsonCalls(end=self.end, separator=";").read(reader, tools, begin)
            return
        if not is_list and not begin:
            raise NotACall
        is_whole = True
        while is_whole:
            is_whole = yield from self.call(reader, (yield from reader.name()))
            next_ = yield from reader.space()
            separator = yield from reader.marker(",")
            if not is_whole or not (separator or (not is_list and (next_.isalpha() or next_ == "_"))):
                break
            reader.begin_trying(separator)
        yield from read_end(reader, self.end, is_whole=is_whole)

    def call(self, reader: Reader, name: str) -> Reading[bool]:
        """Read the arguments after ``name``. False if they were cut off. Raises NotACall."""
        yield from reader.expect("(")
        separator = "{"
        next_ = yield from reader.space()
        while next_ != ")":
            key = yield from reader.name()
            yield from reader.space()
            yield from reader.expect("=")
            if separator == "{":
                reader.start_call(name)
            reader.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            value = yield from self._value(reader)
            if value is None:
                return False
            reader.arguments(value)
            if (yield from reader.marker(",")):
                next_ = yield from reader.space()
            else:
                next_ = yield from reader.peek()
        reader.take(reader.at + 1)
        if separator == "{":
            reader.start_call(name)
        reader.arguments("{}" if separator == "{" else "}")
        return True

    def _value(self, reader: Reader) -> Reading[str | None]:
        """Read a literal and return it as JSON; None if it was cut off."""
        pieces: list[str] = []
        end = yield from reader.scan(Scan(python_stops(reader.markers)), pieces.append)
        return literal_json("".join(pieces).strip()) if end in (",", ")") else None


LLAMA4 = Family(name="llama4", calls=PythonCalls(bare="[{"))
LFM2 = Family("lfm2", PythonCalls(("<|tool_call_start|>",), "<|tool_call_end|>"), THINK)
"""LFM2 and LFM2.5."""
OLMO3 = Family("olmo3", PythonCalls(("<function_calls>",), "</function_calls>", "", is_list=False), THINK)
"""OLMo 3, with one call on each line."""
PYTHONIC = Family("pythonic", PythonCalls((), ""))
"""Llama 3.2 with lists of calls, ToolACE."""
