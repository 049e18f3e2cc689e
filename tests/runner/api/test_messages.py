"""Anthropic's Messages API: a message and its events are those of its clients, errors have its shape."""

from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

PATH = "/v1/messages"
QUESTION = "What is machine learning?"
ASKED = [{"role": "user", "content": QUESTION}]
RENDERED = f"<user>{QUESTION}<assistant>"


def test_a_message_has_text_stop_reason_and_usage(api: API) -> None:
    answer = api.ask(PATH, messages=ASKED, max_tokens=12, system=[{"type": "text", "text": "Be short."}])
    rendered = f"<system>Be short.{RENDERED}"
    assert answer["content"] == [{"type": "text", "text": api.model.expected_text(rendered, 12)}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "small")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)
    assert answer["usage"]["input_tokens"] == len(api.model.ids(rendered))
    assert answer["usage"]["output_tokens"] == 12


def test_events_put_together_are_the_message(api: API) -> None:
    start, ping, begin, *deltas, end, last, stop = api.named_events(PATH, messages=ASKED, max_tokens=9)
    assert start["type"] == "message_start"
    assert start["message"]["usage"]["input_tokens"] == len(api.model.ids(RENDERED))
    assert ping == {"type": "ping"}
    assert begin == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert {(each["type"], each["delta"]["type"]) for each in deltas} == {
        ("content_block_delta", "text_delta")
    }
    assert "".join(each["delta"]["text"] for each in deltas) == api.model.expected_text(RENDERED, 9)
    assert end == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == 9
    assert stop == {"type": "message_stop"}


def test_a_stop_sequence_is_told(api: API) -> None:
    answer = api.ask(PATH, messages=ASKED, max_tokens=90, stop_sequences=["never", "learning?"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "learning?")


def test_an_assistants_last_message_is_continued(api: API) -> None:
    messages = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    answer = api.ask(PATH, messages=messages, max_tokens=5)
    rendered = f"<user>{QUESTION}<assistant>It is"
    assert answer["content"][0]["text"] == api.model.expected_text(rendered, 5)


def test_tokens_are_counted(api: API) -> None:
    counted = api.ask(f"{PATH}/count_tokens", messages=ASKED, model="small")
    assert counted == {"input_tokens": len(api.model.ids(RENDERED))}


@pytest.mark.parametrize(
    ("fields", "name", "code"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0].type", "E1005"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, "", "E1002"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "", "E1104"),
    ],
)
def test_an_error_has_anthropics_shape_and_names_the_field(
    api: API, fields: dict[str, Any], name: str, code: str
) -> None:
    response = api.post(PATH, **{"messages": ASKED, "max_tokens": 5, **fields})
    document = response.json()
    assert (response.status_code, document["type"]) == (400, "error")
    error = document["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert name in error["message"]


def test_other_errors_have_its_shape_too(api: API) -> None:
    for path, body in (
        (PATH, {"model": "claude", "messages": ASKED, "max_tokens": 1}),
        (f"{PATH}/batches", {}),
    ):
        response = api.post(path, **body)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
    for path in (PATH, f"{PATH}/count_tokens"):
        wrong = api.client.post(path, content=b"{", headers={"Content-Type": "application/json"})
        assert wrong.json()["error"]["code"] == "E1600"
