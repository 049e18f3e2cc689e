"""Chats whose answers have reasoning and calls."""

import json
from typing import Any

import pytest

from tests.runner.api.apis import error_of
from tests.runner.api.test_three_apis import chat_events_told, chat_told, events_of
from tests.runner.api.writing_model import CALLS, TOKENIZER, WritingModel

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Warm?"}], "tools": TOOLS}
ARGUMENTS = [{"city": "Paris"}, {"city": "Łódź"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WritingModel:
    return WritingModel(tmp_path_factory.mktemp("calls"))


@pytest.fixture(autouse=True)
def _as_it_was(model: WritingModel) -> None:
    model.text, model.step_tokens, model.reason = CALLS, 1, "end"
    model.drafted = None


def ask(model: WritingModel, **fields: Any) -> dict[str, Any]:
    return model.ask(CHAT, **{**ASKED, **fields})


@pytest.mark.parametrize("step_tokens", [1, 2, 7, 1000])
def test_reasoning_text_and_calls_are_apart_whole_and_streamed(model: WritingModel, step_tokens: int) -> None:
    model.step_tokens = step_tokens
    answer = ask(model)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"].strip() == "Let me see."
    assert message["reasoning_content"] == message["reasoning"] == "Two cities."
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == ARGUMENTS
    assert {call["function"]["name"] for call in message["tool_calls"]} == {"weather"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    response = model.post(CHAT, **ASKED, stream=True, stream_options={"include_usage": True})
    *events, usage = events_of(response.content)
    assert usage["usage"] == answer["usage"]
    assert chat_events_told(events) == chat_told(message)


def test_usage_has_the_draft_tokens_that_the_engine_tells(model: WritingModel) -> None:
    model.drafted = 3, 4
    details = ask(model)["usage"]["completion_tokens_details"]
    assert details.pop("reasoning_tokens") > 0
    assert details == {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 4}
    answer = model.ask("/v1/completions", prompt="hi", max_tokens=1000)
    assert answer["usage"]["completion_tokens_details"] == details


def test_calls_that_max_tokens_cuts_end_by_length(model: WritingModel) -> None:
    count = len(TOKENIZER.encode(CALLS).ids)
    (choice,) = ask(model, max_tokens=count - 30)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"]


@pytest.mark.parametrize("step_tokens", [1, 5, 1000])
def test_an_answer_ends_after_one_call_where_calls_are_not_parallel(
    model: WritingModel, step_tokens: int
) -> None:
    model.step_tokens = step_tokens
    (choice,) = ask(model, parallel_tool_calls=False)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS[0]
    assert choice["message"]["content"].strip() == "Let me see."
    assert choice["finish_reason"] == "tool_calls"


def test_without_tools_calls_are_text_and_reasoning_is_apart(model: WritingModel) -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        message = ask(model, **fields)["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["content"] == CALLS.partition("</think>\n\n")[2]
        assert message["reasoning"] == "Two cities."


def test_all_is_text_where_the_client_asks_for_special_tokens(model: WritingModel) -> None:
    choice = ask(model, skip_special_tokens=False)["choices"][0]
    assert choice["message"] == {"content": CALLS, "role": "assistant"}
    assert choice["finish_reason"] == "stop"


def test_a_schema_that_no_guide_can_follow_is_refused_by_the_field(model: WritingModel) -> None:
    tool = {"name": "weather", "strict": True, "parameters": {"type": "object", "title": "a" * (1 << 18)}}
    response = model.post(CHAT, **{**ASKED, "tools": [{"type": "function", "function": tool}]})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "E1105", "tools")
