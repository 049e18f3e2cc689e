"""Llama 3.1 to 3.3, and the form for models whose own is not known."""

from __future__ import annotations

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

LLAMA3 = Family(
    name="llama3",
    calls=JsonCalls(begins=("<|python_tag|>",), bare="{[", arguments_key="parameters", separator=";"),
)
GENERIC = Family(name="generic", calls=JsonCalls(bare="{[", is_list=True))
THINKING = Family(name="thinking", calls=GENERIC.calls, reasoning=Span("<think>", "</think>"))
"""The generic form of calls, for models that are known to think."""
