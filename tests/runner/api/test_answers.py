"""Answers are OpenAI's in shape and true in what they tell: text, finish reason, usage."""

from datetime import datetime
from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTION = "What is machine learning?"
ASKED = [{"role": "user", "content": QUESTION}]
RENDERED = f"<user>{QUESTION}<assistant>"


def test_a_completion_has_text_reason_and_usage(api: API) -> None:
    answer = api.ask(TEXT, prompt=QUESTION, max_tokens=12, model="small")
    prompt_tokens = len(api.model.ids(QUESTION))
    assert answer["object"] == "text_completion"
    assert answer["model"] == "small"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": api.model.expected_text(QUESTION, 12),
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    expected = {"prompt_tokens": prompt_tokens, "completion_tokens": 12, "total_tokens": prompt_tokens + 12}
    assert answer["usage"] == expected


def test_a_chats_prompt_is_its_template_and_nothing_more(api: API) -> None:
    answer = api.ask(CHAT, messages=ASKED, max_tokens=20)
    assert answer["object"] == "chat.completion"
    message = {"content": api.model.expected_text(RENDERED, 20), "role": "assistant"}
    assert answer["choices"][0]["message"] == message
    assert answer["usage"]["prompt_tokens"] == len(api.model.ids(RENDERED))


def test_a_stream_put_together_is_the_answer_and_ends_with_reason_and_usage(api: API) -> None:
    events = api.events(CHAT, messages=ASKED, max_tokens=40, stream_options={"include_usage": True})
    assert len({(event["id"], event["object"], event["created"]) for event in events}) == 1
    *chunks, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 40
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == api.model.expected_text(RENDERED, 40)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_n_texts_of_each_prompt_come_by_index_and_prompts_may_be_token_ids(
    api: API, n: int, count: int
) -> None:
    texts = ["What is", "Earth"][:count]
    ids = [api.model.ids(text) for text in texts]
    for prompt in (texts, ids) if count > 1 else (texts[0], texts, ids[0], ids):
        answer = api.ask(TEXT, prompt=prompt, n=n, max_tokens=4)
        assert [choice["index"] for choice in answer["choices"]] == [*range(n * count)]
        expected = [api.model.expected_text(text, 4) for text in texts for _ in range(n)]
        assert [choice["text"] for choice in answer["choices"]] == expected
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert answer["usage"]["completion_tokens"] == 4 * n * count


def test_streams_of_n_texts_are_told_apart_by_index(api: API) -> None:
    events = api.events(CHAT, messages=ASKED, n=3, max_tokens=9)
    assert all("usage" not in event for event in events), "unless it is asked for"
    texts: dict[int, str] = {}
    reasons: dict[int, list[Any]] = {}
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
        reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert texts == dict.fromkeys(range(3), api.model.expected_text(RENDERED, 9))
    assert all(each[-1] == "length" and not any(each[:-1]) for each in reasons.values())


def test_echo_begins_with_the_prompt(api: API) -> None:
    for prompt in ("Earth", api.model.ids("Earth")):
        text = api.ask(TEXT, prompt=prompt, echo=True, max_tokens=2)["choices"][0]["text"]
        assert text == "Earth" + api.model.expected_text("Earth", 2)
        events = api.events(TEXT, prompt=prompt, echo=True, max_tokens=2)
        assert "".join(event["choices"][0]["text"] for event in events) == text


def test_a_chat_without_max_tokens_may_take_all_the_room(api: API) -> None:
    with api.streaming(CHAT, messages=ASKED) as events:
        assert sum(1 for _, _ in zip(range(40), events, strict=False)) == 40


def test_models_are_told_by_their_names(api: API) -> None:
    models = api.client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["small", "other"]
    assert (models["first_id"], models["last_id"], models["has_more"]) == ("small", "other", False)
    other = api.client.get("/v1/models/other").json()
    assert other == models["data"][1]
    assert (other["object"], other["type"], other["display_name"]) == ("model", "model", "other")
    assert datetime.fromisoformat(other["created_at"].replace("Z", "+00:00")).timestamp() == other["created"]
    assert api.client.get("/v1/models/none").status_code == 404
    assert api.ask(TEXT, prompt="Earth", model="other", max_tokens=1)["model"] == "other"
    assert api.ask(TEXT, prompt="Earth", max_tokens=1)["model"] == "small"


def test_tokenize_and_detokenize_are_inverse(api: API) -> None:
    tokens = api.ask("/tokenize", prompt=QUESTION)
    assert tokens == {
        "count": len(tokens["tokens"]),
        "max_model_len": 4096,
        "tokens": api.model.ids(QUESTION),
    }
    assert api.ask("/detokenize", tokens=tokens["tokens"]) == {"prompt": QUESTION}
    assert api.ask("/tokenize", messages=ASKED)["tokens"] == api.model.ids(RENDERED)


def test_every_endpoint_is_described_and_every_field_of_a_chat(api: API) -> None:
    document = api.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method in operations:
            answer = api.client.request(method, path.replace("{name}", "small"))
            assert answer.status_code == (200 if method == "get" else 415), path
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "temperature", "stream_options", "chat_template_kwargs"} <= set(fields)


def test_usage_so_far_is_in_every_event_where_it_is_asked_for(api: API) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    *events, last = api.events(TEXT, prompt="Earth", max_tokens=20, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0] > 0, counts[-1]) == (True, 20)
    assert last["usage"] == events[-1]["usage"]
