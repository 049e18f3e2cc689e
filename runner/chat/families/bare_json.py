"""Llama 3.1 to 3.3, and the form for models whose own is not known."""

from runner.chat.families.family import Family, Span
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_METHOD = ".call"


class Llama3Calls(JsonCalls, frozen=True):
    """After the marker also ``NAME.call(key=value)``, which these models learned for tools of their own."""

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        if not begin or (yield from reader.space()) in self.bare:
            yield from super().read(reader, tools, begin)
            return
        name = yield from reader.name()
        tool = name.removesuffix(_METHOD)
        if tool == name or all(each.name != tool for each in tools.tools):
            raise NotACall  # Some other code in Python.
        yield from PythonCalls().call(reader, tool)


LLAMA3 = Family(
    name="llama3",
    calls=Llama3Calls(begins=("<|python_tag|>",), bare="{[", arguments_key="parameters", separator=";"),
    bare_anywhere="{",
)
GENERIC = Family(name="generic", calls=JsonCalls(bare="{[", is_list=True))
THINKING = Family(name="thinking", calls=GENERIC.calls, reasoning=Span("<think>", "</think>"))
"""The generic form of calls, for models that are known to think."""
