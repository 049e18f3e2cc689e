"""The Responses API: its answers and events are those of OpenAI, refusals name its own fields."""

from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

PATH = "/v1/responses"
QUESTION = "What is machine learning?"
RENDERED = f"<user>{QUESTION}<assistant>"


def events(api: API, **body: Any) -> list[dict[str, Any]]:
    found = api.named_events(PATH, **body)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def test_a_response_has_text_status_and_usage(api: API) -> None:
    answer = api.ask(PATH, input=QUESTION, max_output_tokens=12, model="small", instructions="Be short.")
    rendered = f"<system>Be short.{RENDERED}"
    (message,) = answer["output"]
    (content,) = message["content"]
    assert content["text"] == api.model.expected_text(rendered, 12)
    assert (answer["object"], answer["model"], answer["store"]) == ("response", "small", False)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert message["status"] == "incomplete"
    usage = answer["usage"]
    assert usage["input_tokens"] == len(api.model.ids(rendered))
    assert (usage["output_tokens"], usage["total_tokens"]) == (12, usage["input_tokens"] + 12)


def test_events_put_together_are_the_response(api: API) -> None:
    first, second, *found, last = events(
        api, input=[{"role": "user", "content": QUESTION}], max_output_tokens=9
    )
    assert [first["type"], second["type"]] == ["response.created", "response.in_progress"]
    assert first["response"]["status"] == "in_progress"
    added, part_added, *deltas, done, part_done, item_done = found
    assert [each["type"] for each in (added, part_added, done, part_done, item_done)] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    text = api.model.expected_text(RENDERED, 9)
    assert {each["type"] for each in deltas} == {"response.output_text.delta"}
    assert "".join(each["delta"] for each in deltas) == done["text"] == part_done["part"]["text"] == text
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"] == [item_done["item"]]
    assert last["response"]["usage"]["output_tokens"] == 9


def test_what_agents_send_without_effect_is_accepted(api: API) -> None:
    body = {
        "store": False,
        "stream": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "reasoning": None,
        "service_tier": "auto",
        "text": {"verbosity": "low"},
        "metadata": {"trace": "1"},
    }
    answer = api.ask(PATH, input="Earth", max_output_tokens=2, **body)
    assert answer["metadata"] == {"trace": "1"}


def test_tokens_of_a_request_are_counted(api: API) -> None:
    counted = api.ask(f"{PATH}/input_tokens", input=QUESTION, model="small")
    assert counted == {"object": "response.input_tokens", "input_tokens": len(api.model.ids(RENDERED))}
    result = {"type": "function_call_output", "call_id": "c", "output": "5"}
    response = api.client.post(f"{PATH}/input_tokens", json={"input": [result]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "input")
    assert error["message"].startswith("input.call_id must be the id of a call")
