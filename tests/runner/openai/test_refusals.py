"""What can't be honoured is refused, in OpenAI's shape, with our code and the field's name; nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner.openai.apis import API, error_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Earth"}]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("max_tokens", 0, "E1005"),
        ("max_tokens", 1 << 40, "E1005"),
        ("max_tokens", "many", "E1005"),
        ("min_tokens", 17, "E1005"),
        ("min_tokens", -1, "E1005"),
        ("temperature", 2.1, "E1005"),
        ("temperature", [], "E1005"),
        ("top_p", 1.1, "E1005"),
        ("top_k", -2, "E1005"),
        ("min_p", -0.1, "E1005"),
        ("presence_penalty", 3, "E1005"),
        ("repetition_penalty", 0, "E1005"),
        ("logit_bias", {"5": 1}, "E1602"),
        ("logit_bias", {"5": 101}, "E1005"),
        ("seed", 1.5, "E1005"),
        ("n", 0, "E1005"),
        ("n", 129, "E1005"),
        ("stop", [""], "E1005"),
        ("stop", ["a"] * 17, "E1005"),
        ("stop", 5, "E1005"),
        ("stream", "yes", "E1005"),
        ("stream_options", {"usage": True}, "E1601"),
        ("prompt", [], "E1005"),
        ("prompt", [[]], "E1005"),
        ("prompt", ["a", 1], "E1005"),
        ("prompt", [-1], "E1005"),
        ("prompt", [100_000], "E1103"),
        ("prompt", None, "E1005"),
        ("logprobs", 21, "E1005"),
        ("best_of", 2, "E1601"),
        ("suffix", "x", "E1601"),
        ("max_token", 5, "E1601"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completions_field_is_refused_by_name(
    api: API, stream: bool, field: str, value: object, code: str
) -> None:
    error = api.refused(TEXT, 400, **{"prompt": "Earth", "stream": stream, field: value})
    assert (error["param"], error["code"]) == (field, code)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("messages", [], "E1005"),
        ("messages", "Earth", "E1005"),
        ("messages", [{"content": "Earth"}], "E1005"),
        ("messages", [{"role": "user"}], "E1005"),
        ("messages", [{"role": "user", "content": 5}], "E1005"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "E1005"),
        ("max_completion_tokens", 0, "E1005"),
        ("top_logprobs", 3, "E1005"),
        ("tool_choice", "required", "E1005"),
        ("tool_choice", {"type": "function", "function": {"name": "look"}}, "E1005"),
        ("functions", [], "E1601"),
        ("audio", {}, "E1601"),
        ("echo", True, "E1601"),
    ],
)
def test_a_chats_field_is_refused_by_name(api: API, field: str, value: object, code: str) -> None:
    error = api.refused(CHAT, 400, **{"messages": ASKED, field: value})
    assert (error["param"], error["code"]) == (field if field != "top_logprobs" else "logprobs", code)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(api: API, body: bytes) -> None:
    response = api.client.post(TEXT, content=body)
    assert response.status_code == 400
    assert error_of(response)["code"] == "E1600"


def test_a_prompt_that_is_too_long_is_told_both_numbers(api: API) -> None:
    error = api.refused(TEXT, 400, prompt="Earth " * 5000, stream=True)
    assert error["code"] == "E1002"
    assert "maximum input length (4095)" in error["message"]


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


def test_who_has_all_that_is_taken_is_told_when_to_come_again(api: API) -> None:
    """1024 texts at once by default, of which one request may ask 128 for each prompt."""
    response = api.post(TEXT, prompt=["Earth"] * 9, n=128, max_tokens=1)
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
