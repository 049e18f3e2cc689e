"""Tools that an answer may call, their form for the template, and refusals."""

from typing import Any

import pytest

from errors.api import UnsupportedField
from errors.coded_error import CodedError
from runner.api.openai.bodies import ChatBody
from runner.api.openai.reasoning import template_arguments
from runner.api.openai.tool_use import shown_tools, tool_use
from runner.api.validation import decode
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.template import ChatTemplate
from tests.fuzz.choices import as_json

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
WAIT = {"type": "function", "function": {"name": "wait"}}
STRICT = {"type": "function", "function": {"name": "wait", "strict": True}}
EMPTY = {"type": "object", "properties": {}}
NAMED = {"type": "function", "function": {"name": "look"}}


def body(**fields: Any) -> ChatBody:
    messages = [{"role": "user", "content": "hi"}]
    return decode(bytearray(as_json({"messages": messages, **fields})), ChatBody)


def use(engine_kind: str = "vllm", **fields: Any) -> ToolUse | None:
    return tool_use(body(**fields), engine_kind)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_tools_are_used_as_the_choice_says() -> None:
    look, wait = Tool("look", "Looks.", SCHEMA), Tool("wait", "", EMPTY)
    assert use() is use(tools=[]) is use(tools=[LOOK], tool_choice="none") is use(tool_choice="auto") is None
    assert use(tools=[LOOK, WAIT]) == use(tools=[LOOK, WAIT], tool_choice="auto") == ToolUse((look, wait))
    assert use(tools=[LOOK], tool_choice="required", parallel_tool_calls=False) == ToolUse(
        (look,), "required", is_parallel=False
    )
    assert use(tools=[LOOK, WAIT], tool_choice=NAMED) == ToolUse((look,), "required", is_parallel=False)
    assert use(tools=[LOOK, WAIT], tool_choice=allowed("auto", "wait")) == ToolUse((wait,))
    assert use(tools=[LOOK, WAIT], tool_choice=allowed("required", "wait")) == ToolUse((wait,), "required")
    strict = use(tools=[STRICT])
    assert strict.tools[0].is_strict


@pytest.mark.parametrize(
    ("fields", "code", "name"),
    [
        ({"tools": [{"function": {}}]}, "E1005", "tools[0].function.name"),
        ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "E1005", "tools[0].type"),
        ({"tools": [{"function": {"name": "a b"}}]}, "E1005", "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a\n"}}]}, "E1005", "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a" * 129}}]}, "E1005", "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a", "code": "b"}}]}, "E1601", "tools[0].function.code"),
        ({"tools": [WAIT] * 1025}, "E1005", "tools"),
        ({"tool_choice": "any"}, "E1005", "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "E1005", "tool_choice.type"),
        ({"tool_choice": "required"}, "E1005", "tools"),
        ({"tool_choice": NAMED}, "E1005", "tool_choice.function.name"),
        ({"tools": [WAIT], "tool_choice": NAMED}, "E1005", "tool_choice.function.name"),
        (
            {"tools": [LOOK], "tool_choice": allowed("auto", "look", "b")},
            *("E1005", "tool_choice.allowed_tools.tools[1].function.name"),
        ),
        ({"tools": [LOOK], "tool_choice": "required", "guided_regex": "a"}, "E1005", "guided_regex"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(fields: dict[str, Any], code: str, name: str) -> None:
    with pytest.raises(CodedError) as refused:
        use(**fields)
    assert (refused.value.code, refused.value.facts["name"]) == (code, name)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [LOOK], "tool_choice": "required"}, "tool_choice ('required')"),
        ({"tools": [LOOK], "tool_choice": NAMED}, "tool_choice ({'type': 'function', 'function': {"),
        ({"tools": [LOOK, STRICT]}, "tools[1].function.strict (true)"),
    ],
)
def test_what_only_a_guide_enforces_is_refused_without_guides(
    fields: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.api.openai.tool_use.supports", lambda kind, capability: False)
    with pytest.raises(UnsupportedField) as refused:
        use(**fields)
    assert refused.value.sentence.startswith(f"The field {named}")
    assert use(tools=[LOOK]) is not None


def test_templates_get_what_models_learn_to_read() -> None:
    assert shown_tools(None) is shown_tools([]) is None
    shown = shown_tools(body(tools=[LOOK, STRICT]).tools)
    assert shown == [LOOK, {"type": "function", "function": {"name": "wait", "parameters": EMPTY}}]


def arguments(source: str, **fields: Any) -> dict[str, Any] | None:
    return template_arguments(body(**fields), ChatTemplate({"default": source}, {}))


def test_effort_is_told_by_the_variables_that_the_template_has() -> None:
    assert arguments("{{ enable_thinking }}") is None
    assert arguments("{{ enable_thinking }}", reasoning_effort="none") == {"enable_thinking": False}
    assert arguments("{%- if a and thinking %}", reasoning_effort="low") == {"thinking": True}
    assert arguments("{{ reasoning_effort }}", reasoning_effort="low") == {"reasoning_effort": "low"}
    assert arguments("plain", reasoning_effort="none") == {}
    given = {"enable_thinking": True, "other": 1}
    assert arguments("{{ enable_thinking }}", reasoning_effort="none", chat_template_kwargs=given) == given
    for source in ("plain", "thinking {{ a }} thinking", "{{ message.thinking }}{{ message['thinking'] }}"):
        assert arguments(source, reasoning_effort="high") == {}
