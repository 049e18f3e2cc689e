"""What is not supported is refused, in OpenAI's shape, with our code and the field's name; nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner.api.apis import API, error_of

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Earth"}]


@pytest.mark.parametrize(
    ("path", "field", "value", "code"),
    [
        (TEXT, "max_tokens", 0, "E1005"),
        (TEXT, "min_tokens", 17, "E1005"),
        (TEXT, "logit_bias", {"5": 1}, "E1602"),
        (TEXT, "cache_salt", "x", "E1602"),
        (TEXT, "priority", 1, "E1602"),
        (TEXT, "prompt", ["a", 1], "E1005"),
        (TEXT, "prompt", [100_000], "E1103"),
        (TEXT, "max_token", 5, "E1601"),
        (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "E1005"),
        (CHAT, "top_logprobs", 3, "E1005"),
        (CHAT, "tool_choice", {"type": "function", "function": {"name": "look"}}, "E1005"),
        ("/v1/responses", "tools", [{"type": "web_search"}], "E1005"),
        ("/v1/responses", "min_tokens", 9, "E1005"),
        ("/v1/responses", "text", {"format": {"type": "json_object"}}, "E1104"),
        ("/v1/responses", "input", "x " * 5000, "E1002"),
    ],
)
def test_a_field_is_refused_by_name(api: API, path: str, field: str, value: object, code: str) -> None:
    asked = {TEXT: {"prompt": "Earth"}, CHAT: {"messages": ASKED}}.get(
        path, {"input": "Earth", "max_output_tokens": 5}
    )
    for stream in (False, True):
        error = api.refused(path, 400, **{**asked, "stream": stream, field: value})
        names = {"top_logprobs": "logprobs", "text": "text.format"}
        assert (error["param"], error["code"]) == (names.get(field, field), code)
        assert error["type"] == "invalid_request_error"
        assert path != "/v1/responses" or "messages" not in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(api: API, body: bytes) -> None:
    response = api.client.post(TEXT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == "E1600"


def test_a_prompt_that_is_too_long_is_told_both_numbers(api: API) -> None:
    error = api.refused(TEXT, 400, prompt="Earth " * 5000, stream=True)
    assert error["code"] == "E1002"
    assert "maximum input length (4095)" in error["message"]
    assert error["param"] == "prompt"
    messages = [{"role": "user", "content": "Earth " * 5000}]
    assert api.refused(CHAT, 400, messages=messages)["param"] == "messages"


def test_fields_that_contradict_each_other_are_refused_by_name(api: API) -> None:
    assert api.refused(TEXT, 400, prompt="Earth", echo=True, logprobs=1)["param"] == "echo"
    error = api.refused(CHAT, 400, messages=ASKED, max_tokens=5, max_completion_tokens=6)
    assert error["param"] == "max_completion_tokens"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert api.refused(CHAT, 400, messages=ASKED, **both)["param"] == "add_generation_prompt"


def test_another_model_and_another_path_are_not_found(api: API) -> None:
    assert api.refused(TEXT, 404, prompt="Earth", model="gpt-4")["param"] == "model"
    assert error_of(api.client.get("/v1/engines"))["code"] == "E1605"
    assert api.client.get(TEXT).status_code == 405


def test_a_prompt_that_the_engine_refuses_is_named_as_the_caller_calls_it(api: API) -> None:
    assert api.refused(TEXT, 400, prompt="")["message"].startswith("prompt must be ")
    assert api.refused(TEXT, 400, prompt=[100_000])["message"].startswith("prompt must be ")


def test_an_unknown_field_is_likened_to_one_that_could_be_meant(api: API) -> None:
    assert api.refused(TEXT, 400, prompt="Earth", max_new_tokens=5)["message"].endswith(
        "leave it out, or send max_tokens if that is meant."
    )
    for far in ("frobnicate", "audio_in"):
        assert api.refused(CHAT, 400, messages=ASKED, **{far: "x"})["message"].endswith("leave it out.")


@pytest.mark.parametrize(("prompts", "n", "field"), [(1025, 1, "prompt"), (9, 128, "n")])
def test_more_texts_than_there_are_ever_places_for_are_not_told_to_come_again(
    api: API, prompts: int, n: int, field: str
) -> None:
    """1024 by default."""
    error = api.refused(TEXT, 400, prompt=["Earth"] * prompts, n=n, max_tokens=1)
    assert (error["param"], error["code"]) == (field, "E1005")


def test_who_has_all_that_is_taken_is_told_when_to_come_again(api: API) -> None:
    """1024 texts at once by default, of which one request may ask 128 for each prompt."""
    with api.streaming(TEXT, prompt="Earth", max_tokens=4000) as events:
        next(events)
        response = api.post(TEXT, prompt=["Earth"] * 8, n=128, max_tokens=1)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["code"] == "E1607"
    assert api.ask(TEXT, prompt="Earth", max_tokens=1)


def test_tokenizing_wants_either_prompt_or_messages(api: API) -> None:
    both: dict[str, Any] = {"prompt": "Earth", "messages": ASKED}
    for body in ({}, both):
        assert api.refused("/tokenize", 400, **body)["code"] == "E1703"
    assert api.refused("/detokenize", 400, tokens=[-1])["param"] == "tokens"
    assert api.ask("/detokenize", tokens=[10**6]) == {"prompt": ""}
