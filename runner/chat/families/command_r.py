"""Command R7B, Command A and Command A Reasoning."""

from __future__ import annotations

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

COMMAND_R = Family(
    name="command-r",
    calls=JsonCalls(
        begins=("<|START_ACTION|>",),
        end="<|END_ACTION|>",
        name_key="tool_name",
        arguments_key="parameters",
        id_key="tool_call_id",
        is_list=True,
    ),
    reasoning=Span("<|START_THINKING|>", "<|END_THINKING|>"),
    wrappers=(
        Span("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        Span("<|START_TEXT|>", "<|END_TEXT|>"),  # Later models.
    ),
)
