"""A model's family is the one that reads what its chat template writes, or is named by a setting."""

import asyncio
from pathlib import Path

import pytest

from errors.settings import InvalidSetting
from runner.chat.families.recognition import FAMILIES, Recognized, recognize
from runner.chat.template import ChatTemplate
from runner.service import Service
from runner.settings.settings import load_settings
from tests.runner.chat.families.answers import tokenizer_with

LLAMA_TOKENS = ("<|python_tag|>", "<|eot_id|>")
SIGNS = {
    "gpt-oss": ("<|start|>{{ role }}<|channel|>final<|message|>", ()),
    "kimi-k2": ("<|tool_calls_section_begin|> <think>", ()),
    "deepseek-v3": ("<｜Assistant｜><｜tool▁calls▁begin｜>function\n```json", ()),
    "deepseek-v3.1": ("<｜Assistant｜><think>", ("<｜tool▁calls▁begin｜>",)),
    "deepseek-v3.2": ("<｜Assistant｜><｜DSML｜function_calls>", ()),
    "deepseek-v4": ("<｜Assistant｜><｜DSML｜tool_calls> <think>", ("｜DSML｜",)),
    "mistral": ("[INST] {{ tools }} [TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]")),
    "mistral-list": ("[AVAILABLE_TOOLS] [TOOL_CALLS]", ("[TOOL_CALLS]",)),
    "longcat-lite": ("<longcat_tool_call> <longcat_arg_key>", ()),
    "command-r": ("<|START_ACTION|> tool_name", ()),
    "command-r-2024": ("<|START_OF_TURN_TOKEN|> the `directly-answer` tool ```json", ()),
    "glm": ("<tool_call>{name}<arg_key>", ("<tool_call>",)),
    "qwen3-coder": ("<tool_call>\n<function=x>\n<parameter=y>", ("<tool_call>",)),
    "llama4": ("<|header_start|> {{ tools }}", ("<|python_start|>",)),
    "lfm2": ("List of tools: <|tool_list_start|>[", ()),
    "phi4": ("<|tool|>", ("<|/tool_call|>",)),
    "granite-3.2": ("<|start_of_role|> Here is my thought process: ", ("<|tool_call|>",)),
    "granite": ("<|start_of_role|> {{ tools }}", ("<|tool_call|>",)),
    "hermes": ("<tool_call></tool_call> <think>", LLAMA_TOKENS),
    "llama3": ("{{ tools }} <|eot_id|>", LLAMA_TOKENS),
    "thinking": ("<think>", ()),
}
"""Templates that write no calls, and tokens."""


def template(call: str, *, before: str = "", after: str = "", thought: str = "", checks: str = "") -> str:
    """Return a template that writes ``call`` for each call of a turn."""
    return (
        "{%- for message in messages %}[{{ message.role }}]"
        f"{{%- if message.reasoning_content %}}{thought}{{%- endif %}}"
        "{{- message.content or '' }}{%- if message.tool_calls %}"
        f"{checks}{before}{{%- for tool_call in message.tool_calls %}}"
        f"{{%- set tool = tool_call.function %}}{call}{{%- endfor %}}{after}"
        "{%- endif %}[end]{%- endfor %}{%- if add_generation_prompt %}[assistant]{%- endif %}"
    )


THINK = "<think>{{ message.reasoning_content }}</think>"
OBJECT = '{"name": "{{ tool.name }}", "arguments": {{ tool.arguments | tojson }}}'
HERMES = f"<tool_call>{OBJECT}</tool_call>"
COMMA = "{%- if not loop.last %}, {%- endif %}"
ITEMS = "{%- for key, value in tool.arguments | items %}"
INVOKE = (
    f'<invoke name="{{{{ tool.name }}}}">{ITEMS}<parameter name="{{{{ key }}}}">{{{{ value }}}}</parameter>'
    "{%- endfor %}</invoke>"
)
ONE_CALL = "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{%- endif %}"
NO_OBJECT = (
    "{%- if message.tool_calls[0].function.arguments is mapping %}{{ raise_exception('no') }}{%- endif %}"
)
NO_TEXT = "{%- if message.content is string %}{{ raise_exception('content') }}{%- endif %}"
KEYED = '<|tools_prefix|>[{"{{ tool.name }}": {{ tool.arguments | tojson }}}]<|tools_suffix|>'
RENDERED: dict[str, tuple[str, ...]] = {
    "a call and its reasoning": ("hermes", template(HERMES, thought=THINK)),
    "signs of another family": ("hermes", "{#- <function= <parameter= #}" + template(HERMES)),
    "one call at a time": ("llama3", template(OBJECT.replace("arguments", "parameters", 1), checks=ONE_CALL)),
    "arguments as text": ("hermes", template(HERMES.replace(" | tojson", ""), checks=NO_OBJECT)),
    "no content beside calls": ("hermes", template(HERMES, checks=NO_TEXT)),
    "a list": ("generic", template(OBJECT + COMMA, before="[", after="]")),
    "a list in markers": (
        "hunyuan-a13b",
        template(OBJECT + COMMA, before="<tool_calls>[", after="]</tool_calls>"),
    ),
    "tags": ("minimax-m2", template(INVOKE, before="<minimax:tool_call>", after="</minimax:tool_call>")),
    "Python": (
        "pythonic",
        template(
            f"{{{{ tool.name }}}}({ITEMS}{{{{ key }}}}='{{{{ value }}}}'{COMMA}{{%- endfor %}}){COMMA}",
            before="[",
            after="]",
        ),
    ),
    "names as keys": ("apertus", template(KEYED)),
    "a marker that others leave out": (
        "lfm2",
        template(OBJECT + COMMA, before="<|tool_call_start|>[", after="]<|tool_call_end|>"),
        "<|tool_call_start|>",
        "<|tool_call_end|>",
    ),
    "no name but in the id": (
        "kimi-k2",
        template(
            "<|tool_call_begin|>{{ tool_call.id }}<|tool_call_argument_begin|>{{ tool.arguments | tojson }}"
            "<|tool_call_end|>",
            before="<|tool_calls_section_begin|>",
            after="<|tool_calls_section_end|>",
        ),
    ),
    "a checkpoint's own markers": (
        "hunyuan-3",
        template(
            f"<tool_call:x1>{{{{ tool.name }}}}<tool_sep:x1>{ITEMS}<arg_key:x1>{{{{ key }}}}</arg_key:x1>"
            "<arg_value:x1>{{ value }}</arg_value:x1>{%- endfor %}</tool_call:x1>",
            before="<tool_calls:x1>",
            after="</tool_calls:x1>",
        ),
    ),
}


def recognized(text: str, *tokens: str, name: str | None = None) -> Recognized:
    return recognize(name, ChatTemplate({"default": text} if text else {}, {}), tokenizer_with(tokens))


@pytest.mark.parametrize("name", RENDERED)
def test_a_family_is_recognized_by_what_the_template_writes(name: str) -> None:
    family, text, *tokens = RENDERED[name]
    found = recognized(text, "[user]", "[assistant]", "[end]", *tokens)
    assert (found.family.name, found.warning) == (family, "")


def test_reasoning_is_read_as_the_template_writes_it() -> None:
    thought = "[THINK]{{ message.reasoning_content }}[/THINK]"
    family = recognized(template(HERMES, thought=thought), "[end]").family
    assert family.reasoning == FAMILIES["mistral"].reasoning
    # Many templates leave reasoning out of the history, and only begin it.
    family = recognized(template(OBJECT) + "<think></think>", "[end]").family
    assert family.reasoning == FAMILIES["hermes"].reasoning


def test_calls_that_no_family_reads_are_told() -> None:
    found = recognized(template("<call>{{ tool.name }}!{{ tool.arguments.place }}</call>", thought=THINK))
    assert "<call>probe_tool!New York</call>" in found.warning
    assert (found.family.name, found.family.reasoning) == ("thinking", FAMILIES["hermes"].reasoning)


@pytest.mark.parametrize("name", SIGNS)
def test_a_template_without_calls_is_recognized_by_signs(name: str) -> None:
    text, tokens = SIGNS[name]
    assert recognized(text, *tokens) == Recognized(FAMILIES[name])


@pytest.mark.parametrize("text", ["{{ bos_token }} {{ tools }}", "", "{{ tool_calls.x.y }}"])
def test_other_models_have_none(text: str) -> None:
    assert recognized(text) == Recognized()
    assert recognized("", *LLAMA_TOKENS) == Recognized()


def test_a_setting_names_the_family_or_turns_it_off() -> None:
    assert recognized("<tool_call>", name="glm").family is FAMILIES["glm"]
    assert recognized("<tool_call>", name="none").family is None
    with pytest.raises(InvalidSetting, match=r"CHAT_FAMILY.*hermes.*qwen4"):
        recognized("", name="qwen4")


def test_an_unknown_family_is_refused_before_anything_starts(tmp_path: Path) -> None:
    service = Service(load_settings({"HOME": str(tmp_path), "CHAT_FAMILY": "qwen4"}))
    with pytest.raises(InvalidSetting, match="CHAT_FAMILY"):
        asyncio.run(service.open())
