"""Calls of tools, their results and reasoning in the messages of a chat."""

from typing import Any

import pytest

from errors.requests import ImagesUnsupported, InvalidInput
from runner.chat import messages as chat_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def checked_messages(messages: Any, *known: str) -> list[dict[str, Any]]:
    """Check messages for a template that knows these roles beside OpenAI's four."""
    return chat_messages.checked_messages(messages, lambda role: role in known)


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


def test_null_counts_as_not_sent_in_messages_and_calls() -> None:
    sent = {"function": {"name": "look", "arguments": {}}}
    nulls = {
        "id": None,
        "type": None,
        "index": None,
        "function": {**sent["function"], "arguments": None, "x": None},
    }
    message = assistant(name=None, content=None, refusal=None, audio=None, tool_calls=[nulls])
    assert message == assistant(tool_calls=[sent])
    assert message["tool_calls"] == [sent]


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
    ("role", "meant"),
    [
        *(("usr", "user"), ("User", "user"), ("human", "user"), ("asistant", "assistant")),
        *(("ai", "assistant"), ("model", "assistant"), ("sytem", "system"), ("function", "tool")),
        ("narrator", None),
    ],
)
def test_a_role_that_neither_openai_nor_the_template_knows_is_refused(role: str, meant: str | None) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": role, "content": "Hi"}]
    hint = rf" \(did you mean {meant}\?\)" if meant else ""
    expected = f"system, developer, user, assistant or tool{hint}, but is '{role}'"
    with pytest.raises(InvalidInput, match=rf"messages\[1\].role must be {expected}"):
        checked_messages(messages)
    assert checked_messages(messages, role)[1]["role"] == role


def test_a_developer_is_the_system_to_a_template_that_knows_none() -> None:
    (message,) = checked_messages([{"role": "developer", "content": "Be brief."}])
    assert message == {"role": "system", "content": "Be brief."}
    (message,) = checked_messages([{"role": "developer", "content": "Be brief."}], "developer")
    assert message["role"] == "developer"


ONE, TWO = ({"type": "text", "text": text} for text in ("one", "two"))


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        *(({}, ""), ({"content": None}, ""), ({"content": []}, ""), ({"refusal": None}, "")),
        ({"content": [ONE, TWO]}, "one\ntwo"),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        *(({"content": "Paris.", "tool_calls": []}, "Paris."), ({"tool_calls": []}, "")),
    ],
)
def test_what_an_assistant_said_is_a_text_and_may_be_nothing(fields: dict[str, Any], content: str) -> None:
    assert assistant(**fields) == {"role": "assistant", "content": content}
    assert assistant(**fields, reasoning="A city.")["content"] == content
    if not content:
        assert "content" not in assistant(**fields | {"tool_calls": [CALL]})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        *(('{"at": 1}', {"at": 1}), ({"at": 1}, {"at": 1}), ('"{\\"at\\": 1}"', {"at": 1})),
        *((written, {}) for written in (None, "", " ", "null", "{}", "[]", [], '""')),
        *((written, written) for written in ('{"at": 1', "at=1", "[1]", '"at"', "5")),
        ([1], "[1]"),
    ],
)
def test_arguments_are_an_object_or_the_text_that_the_model_wrote(given: object, read: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": given}}
    assert assistant(tool_calls=[call])["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"function_call": {"name": "look", "arguments": "{}"}}, "function_call"),
        ({"tool_calls": {}}, "tool_calls"),
        ({"tool_calls": [{}]}, r"tool_calls\[0\]"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, r"tool_calls\[0\].function.name"),
        ({"content": [{"type": "text"}]}, r"content\[0\].text"),
        ({"content": [ONE, {"type": "input_audio"}]}, r"content\[1\]"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=rf"messages\[0\].{place} must be"):
        assistant(**fields)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image"])
def test_an_image_is_refused_by_its_place(kind: str) -> None:
    """The API takes the images out of the messages before, if the engine takes some."""
    with pytest.raises(ImagesUnsupported, match=r"messages\[0\].content\[1\] is an image"):
        checked_messages([{"role": "user", "content": [ONE, {"type": kind}]}])
