"""Families that write calls as objects of JSON between markers."""

from runner.chat.families.family import THINK, Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls

HERMES = Family("hermes", JsonCalls(begins=("<tool_call>",), end="</tool_call>"), THINK)
"""Hermes 2 and 3, Qwen 2.5, Qwen 3 and QwQ."""
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
"""Command R7B, Command A and Command A Reasoning."""
COMMAND_R_2024 = Family(
    name="command-r-2024",
    calls=JsonCalls(
        begins=("Action: ```json", "Action:\n```json"),
        end="```",
        name_key="tool_name",
        arguments_key="parameters",
        is_list=True,
        no_calls=("directly_answer", "directly-answer"),
    ),
)
"""Command R and Command R+."""
_GRANITE_CALLS = JsonCalls(begins=("<|tool_call|>", "<tool_call>"), end="</tool_call>", is_list=True)
GRANITE = Family("granite", _GRANITE_CALLS, THINK, wrappers=(Span("<response>", "</response>"),))
"""Granite 3.0 to 3.3. Granite 4 writes calls like Hermes."""
GRANITE_32 = Family(
    "granite-3.2", _GRANITE_CALLS, Span("Here is my thought process:", "Here is my response:")
)
PHI4 = Family(
    name="phi4",
    calls=JsonCalls(begins=("<|tool_call|>", "functools"), end="<|/tool_call|>", is_list=True),
    reasoning=THINK,
)
"""Phi-4-mini, and Phi-4-reasoning."""
