"""Phi-4-mini, and Phi-4-reasoning."""

from __future__ import annotations

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

PHI4 = Family(
    name="phi4",
    calls=JsonCalls(begins=("<|tool_call|>", "functools"), end="<|/tool_call|>", is_list=True),
    reasoning=Span("<think>", "</think>"),
)
