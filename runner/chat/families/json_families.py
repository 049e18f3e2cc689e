"""Families that write calls with arguments in JSON between markers."""

from runner.chat.families.family import THINK, Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.keyed_calls import KeyedCalls
from runner.chat.families.syntax.named_calls import GUIDED_ID, NAME, PART, IdentifiedCalls, NamedCalls
from runner.chat.families.syntax.recipient_calls import RecipientCalls

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
"""Granite 3.0 to 3.3. Granite 4 has the calls of Hermes."""
GRANITE_32 = Family(
    "granite-3.2", _GRANITE_CALLS, Span("Here is my thought process:", "Here is my response:")
)
PHI4 = Family(
    name="phi4",
    calls=JsonCalls(begins=("<|tool_call|>", "functools"), end="<|/tool_call|>", bare="[{", is_list=True),
    reasoning=THINK,
)
"""Phi-4-mini, and Phi-4-reasoning."""
_TOOL_CALLS = JsonCalls(begins=("<tool_calls>",), end="</tool_calls>", is_list=True)
HUNYUAN_A13B = Family("hunyuan-a13b", _TOOL_CALLS, THINK, (Span("<answer>", "</answer>"),))
"""Hunyuan A13B, Jamba and MiniMax M1."""
APRIEL = Family(
    name="apriel",
    calls=_TOOL_CALLS,
    reasoning=Span("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    wrappers=(Span("", "[END FINAL RESPONSE]"),),
)
"""Apriel 1.5 and 1.6."""
NEMOTRON_2 = Family("nemotron-2", JsonCalls(begins=("<TOOLCALL>",), end="</TOOLCALL>", is_list=True), THINK)
LONGCAT = Family(
    name="longcat",
    calls=JsonCalls(begins=("<longcat_tool_call>",), end="</longcat_tool_call>"),
    reasoning=Span("<longcat_think>", "</longcat_think>"),
)
INTERN = Family(
    name="intern",
    calls=JsonCalls(begins=("<|action_start|><|plugin|>",), end="<|action_end|>", arguments_key="parameters"),
    reasoning=THINK,
)
"""InternLM 2.5, InternLM 3 and Intern-S1."""
GRANITE_20B = Family("granite-20b", JsonCalls(begins=("<function_call>",)))
"""Granite 20B function calling."""
GIGACHAT = Family("gigachat", JsonCalls(begins=("<|function_call|>", "function call<|role_sep|>")))
"""GigaChat 3."""
ERNIE = Family("ernie", HERMES.calls, THINK, (Span("<response>", "</response>"),))
"""ERNIE 4.5."""
APERTUS = Family("apertus", KeyedCalls(), Span("<|inner_prefix|>", "<|inner_suffix|>"))
FUNCTIONARY = Family("functionary", RecipientCalls())
"""Functionary 3.2."""
FUNCTIONARY_31 = Family("functionary-3.1", NamedCalls("<function=", ">", "</function>"))
SOLAR = Family(
    name="solar",
    calls=IdentifiedCalls(
        begin="<|tool_call:begin|>",
        separator="<|tool_call:args|>",
        end="<|tool_call:end|>",
        before_name=f"<|tool_call:begin|>{GUIDED_ID}{NAME}",
        section_begin="<|tool_calls|>",
        section_end="<|calls|>",
        section_variants=((f"{PART}<|tool_calls|>", "<|calls|>"),),
    ),
    reasoning=Span("<|think|>", "<|end|>"),
    wrappers=(Span("<|content|>", "<|end|>"), Span(f"{PART}<|content|>", "<|end|>")),
)
