"""Calls of tools, their results and reasoning in the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from errors.requests import InvalidInput
from runner.chat.messages import checked_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def assistant(**fields: Any) -> dict[str, Any]:
    (message,) = checked_messages([{"role": "assistant", **fields}])
    return message


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_given_to_the_template_by_each_of_its_names(name: str) -> None:
    message = assistant(content="Paris.", **{name: "A city."})
    assert {message[each] for each in ("reasoning_content", "reasoning", "thinking")} == {"A city."}
    assert assistant(content=None, **{name: "A city."})["content"] == ""
    with pytest.raises(InvalidInput, match=rf"messages\[0\].{name} must be a text"):
        assistant(content="Paris.", **{name: ["A city."]})


def test_content_reasoning_and_calls_are_without_the_name_that_gpt_oss_refuses_beside_both() -> None:
    assert "thinking" in assistant(reasoning="A city.", tool_calls=[CALL])
    both = assistant(content="Let me see.", reasoning="A city.", tool_calls=[CALL])
    assert "thinking" not in both
    assert both["reasoning_content"] == "A city."


def test_a_result_has_the_name_of_its_call() -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "5"}]}
    named = {**result, "name": "mine"}
    *_, first, second = checked_messages([{"role": "assistant", "tool_calls": [CALL]}, result, named])
    assert first == {"role": "tool", "tool_call_id": "call_1", "content": "5", "name": "look"}
    assert second["name"] == "mine"


def test_a_result_belongs_to_an_earlier_call() -> None:
    result = {"role": "tool", "tool_call_id": "call_2", "content": "5"}
    calls = {"role": "assistant", "tool_calls": [CALL]}
    with pytest.raises(
        InvalidInput, match=r"messages\[1\].tool_call_id must be .* \(call_1\), but is 'call_2'"
    ):
        checked_messages([calls, result])
    with pytest.raises(InvalidInput, match=r"messages\[0\].tool_call_id must be .* there is none"):
        checked_messages([result, {**calls, "tool_calls": [{**CALL, "id": "call_2"}]}])
    without_id = {"function": {"name": "look", "arguments": {}}}
    for messages in (
        [{"role": "tool", "content": "5"}],
        [{"role": "assistant", "tool_calls": [without_id]}, result],
    ):
        assert checked_messages(messages)[-1]["content"] == "5"


@pytest.mark.parametrize(
    ("role", "meant"), [("usr", "user"), ("User", "user"), ("asistant", "assistant"), ("sytem", "system")]
)
def test_a_misspelled_role_is_refused(role: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=rf"messages\[0\].role must be {meant}, .* but is '{role}'"):
        checked_messages([{"role": role, "content": "Hi"}])


@pytest.mark.parametrize("role", ["function", "developer", "ipython", "observation", "model", "user1", "gpt"])
def test_a_template_may_know_other_roles(role: str) -> None:
    assert checked_messages([{"role": role, "content": "Hi"}])[0]["role"] == role


def test_an_empty_list_of_calls_is_none() -> None:
    assert assistant(content="Paris.", tool_calls=[]) == {"role": "assistant", "content": "Paris."}
    assert assistant(tool_calls=[]) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "content"),
        ({"tool_calls": {}}, "tool_calls"),
        ({"tool_calls": [{}]}, r"tool_calls\[0\]"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, r"tool_calls\[0\].function.name"),
        ({"content": [{"type": "text"}]}, r"content\[0\].text"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=rf"messages\[0\].{place} must be"):
        assistant(**fields)
