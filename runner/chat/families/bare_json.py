"""Llama 3.1 to 3.3, and the form for models whose own is not known."""

from runner.chat.families.family import Family, Span
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_METHOD = ".call"


class Llama3Calls(JsonCalls, frozen=True):
    """Calls of Llama 3. Those of the models' own tools are ``NAME.call(key=value)`` after the marker."""

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        if not begin or (yield from reader.space()) in self.bare:
            yield from super().read(reader, tools, begin)
            return
        name = yield from reader.name()
        tool = name.removesuffix(_METHOD)
        if tool == name or all(each.name != tool for each in tools.tools):
            raise NotACall  # It is other code in Python.
        yield from PythonCalls().call(reader, tool)


class FencedCalls(JsonCalls, frozen=True):
    """Calls that may also stand in a fence of Markdown or in markers of other families."""

    begins: tuple[str, ...] = ("```json", "<tool_call>", "[TOOL_CALLS]")
    bare: str = "{["
    is_list: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.begins, *_ENDS.values())

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        ends = {reader.markers.written(marker): end for marker, end in _ENDS.items()}
        # NOTE: read them as without a marker, so that other objects in a fence are text.
        yield from JsonCalls(end=ends.get(begin, ""), is_list=True).read(reader, tools, "")


_ENDS = {"```json": "```", "<tool_call>": "</tool_call>"}
LLAMA3 = Family(
    name="llama3",
    calls=Llama3Calls(begins=("<|python_tag|>",), bare="{[", arguments_key="parameters", separator=";"),
    bare_anywhere="{",
)
GENERIC = Family(name="generic", calls=JsonCalls(bare="{[", is_list=True))
XLAM = Family("xlam", FencedCalls())
THINKING = Family(name="thinking", calls=GENERIC.calls, reasoning=Span("<think>", "</think>"))
"""Generic form of calls, for models that are known to think."""
