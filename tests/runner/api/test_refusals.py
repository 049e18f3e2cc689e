"""What is not supported is refused, in OpenAI's shape, with our code and the field's name; nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Earth"}]


@pytest.mark.parametrize(
    ("path", "field", "value", "code"),
    [
        (TEXT, "min_tokens", 17, "E1005"),
        (TEXT, "logit_bias", {"5": 1}, "E1602"),
        (TEXT, "cache_salt", "x", "E1602"),
        (TEXT, "priority", 1, "E1602"),
        (TEXT, "prompt", [100_000], "E1103"),
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


@pytest.mark.parametrize(("prompts", "n", "field"), [(1025, 1, "prompt"), (9, 128, "n")])
def test_more_texts_than_there_are_ever_places_for_are_not_told_to_come_again(
    api: API, prompts: int, n: int, field: str
) -> None:
    """1024 by default."""
    error = api.refused(TEXT, 400, prompt=["Earth"] * prompts, n=n, max_tokens=1)
    assert (error["param"], error["code"]) == (field, "E1005")


def test_tokenizing_wants_either_prompt_or_messages(api: API) -> None:
    both: dict[str, Any] = {"prompt": "Earth", "messages": ASKED}
    for body in ({}, both):
        assert api.refused("/tokenize", 400, **body)["code"] == "E1703"
    assert api.refused("/detokenize", 400, tokens=[-1])["param"] == "tokens"
    assert api.ask("/detokenize", tokens=[10**6]) == {"prompt": ""}
