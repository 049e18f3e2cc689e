"""Granite 3.0 to 3.3. Granite 4 writes calls like Hermes."""

from __future__ import annotations

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

_CALLS = JsonCalls(begins=("<|tool_call|>", "<tool_call>"), end="</tool_call>", is_list=True)
GRANITE = Family(
    name="granite",
    calls=_CALLS,
    reasoning=Span("<think>", "</think>"),
    wrappers=(Span("<response>", "</response>"),),
)
GRANITE_32 = Family(
    name="granite-3.2",
    calls=_CALLS,
    reasoning=Span("Here is my thought process:", "Here is my response:"),
)
