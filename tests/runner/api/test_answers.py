"""Answers are OpenAI's in shape and true in what they tell: text, finish reason, usage."""

from __future__ import annotations

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


def test_a_stream_without_the_option_has_no_usage(api: API) -> None:
    assert all("usage" not in event for event in api.events(TEXT, prompt=QUESTION, max_tokens=3))


@pytest.mark.parametrize("stream", [False, True])
def test_characters_of_several_tokens_come_whole(api: API, stream: bool) -> None:
    prompt = "日本 👩‍👩‍👧 é "
    if stream:
        events = api.events(TEXT, prompt=prompt, max_tokens=60)
        texts = [event["choices"][0]["text"] for event in events]
        # A character that the end cuts is cut in both forms.
        assert all("\ufffd" not in text for text in texts[:-2])
        text = "".join(texts)
    else:
        text = api.ask(TEXT, prompt=prompt, max_tokens=60)["choices"][0]["text"]
    assert text == api.model.expected_text(prompt, 60)


def test_prompts_are_texts_token_ids_or_lists_of_either(api: API) -> None:
    texts = ["What is", "Earth"]
    ids = [api.model.ids(text) for text in texts]
    expected = [api.model.expected_text(text, 5) for text in texts]
    for prompt, wanted in (
        (texts[0], expected[:1]),
        (texts, expected),
        (ids[0], expected[:1]),
        (ids, expected),
    ):
        answer = api.ask(TEXT, prompt=prompt, max_tokens=5)
        assert [choice["text"] for choice in answer["choices"]] == wanted
        assert answer["usage"]["completion_tokens"] == 5 * len(wanted)


def test_n_texts_of_each_prompt_come_by_index(api: API) -> None:
    prompts = ["What is", "Earth"]
    answer = api.ask(TEXT, prompt=prompts, n=3, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    texts = [api.model.expected_text(prompt, 4) for prompt in prompts for _ in range(3)]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == sum(len(api.model.ids(prompt)) for prompt in prompts)
    assert answer["usage"]["completion_tokens"] == 24


def test_streams_of_n_texts_are_told_apart_by_index(api: API) -> None:
    events = api.events(CHAT, messages=ASKED, n=3, max_tokens=9)
    texts: dict[int, str] = {}
    reasons: dict[int, list[Any]] = {}
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
        reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert texts == dict.fromkeys(range(3), api.model.expected_text(RENDERED, 9))
    assert all(each[-1] == "length" and not any(each[:-1]) for each in reasons.values())


@pytest.mark.parametrize("stop", ["machine", ["learning?", "machine", "is never"]])
def test_a_stop_sequence_ends_the_text_before_itself(api: API, stop: str | list[str]) -> None:
    answer = api.ask(TEXT, prompt=QUESTION, stop=stop, max_tokens=50)
    assert answer["choices"][0]["text"] == "What is "
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_echo_begins_with_the_prompt(api: API) -> None:
    for prompt in ("Earth", api.model.ids("Earth")):
        text = api.ask(TEXT, prompt=prompt, echo=True, max_tokens=2)["choices"][0]["text"]
        assert text == "Earth" + api.model.expected_text("Earth", 2)
        events = api.events(TEXT, prompt=prompt, echo=True, max_tokens=2)
        assert "".join(event["choices"][0]["text"] for event in events) == text


def test_a_chat_without_max_tokens_may_take_all_the_room(api: API) -> None:
    with api.streaming(CHAT, messages=ASKED) as events:
        assert sum(1 for _, _ in zip(range(40), events, strict=False)) == 40


def test_a_completion_without_max_tokens_has_openais_sixteen(api: API) -> None:
    assert api.ask(TEXT, prompt=QUESTION)["usage"]["completion_tokens"] == 16


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


def test_tools_are_shown_to_the_model_unless_none_is_chosen(api: API) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    plain = api.ask(CHAT, messages=ASKED, max_tokens=1)["usage"]["prompt_tokens"]
    assert api.ask(CHAT, messages=ASKED, max_tokens=1, tools=tools)["usage"]["prompt_tokens"] > plain
    hidden = api.ask(CHAT, messages=ASKED, max_tokens=1, tools=tools, tool_choice="none")
    assert hidden["usage"]["prompt_tokens"] == plain


def test_health_and_readiness(api: API) -> None:
    assert api.client.get("/health").json() == {"status": "ok"}
    assert api.client.get("/ready").json() == {"status": "ready"}


def test_metrics_count_what_all_processes_did(api: API) -> None:
    api.ask(TEXT, prompt="Earth", max_tokens=1)
    text = api.client.get("/metrics").text
    assert 'cog_triton_slot_ended_requests_total{reason="length"}' in text
    ended = 'cog_triton_requests_total{api="openai",code="",outcome="succeeded"} '
    assert float(text.partition(ended)[2].split()[0]) > 0
    assert 'cog_triton_active_requests{api="cog"} 0' in text


def test_every_endpoint_is_described_and_every_field_of_a_chat(api: API) -> None:
    document = api.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method in operations:
            answer = api.client.request(method, path.replace("{name}", "small"))
            assert answer.status_code == (200 if method == "get" else 415), path
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "temperature", "stream_options", "chat_template_kwargs"} <= set(fields)
