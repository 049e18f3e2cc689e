"""Hermes 2 and 3, Qwen 2.5, Qwen 3 and QwQ."""

from __future__ import annotations

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

HERMES = Family(
    name="hermes",
    calls=JsonCalls(begins=("<tool_call>",), end="</tool_call>"),
    reasoning=Span("<think>", "</think>"),
)
