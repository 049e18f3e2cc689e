"""What is not supported is refused, in OpenAI's shape, with our code and the field's name; nothing hangs."""

from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ASKED = [{"role": "user", "content": "Earth"}]
BODIES: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "Earth"},
    CHAT: {"messages": ASKED},
    RESPONSES: {"input": "Earth", "max_output_tokens": 5},
}
URL = "http://127.0.0.1:1/"  # Nothing listens there: it would be another error.
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}
INPUT_IMAGE = {"type": "input_image", "image_url": URL}
NAMED = {"type": "function", "function": {"name": "look"}}
LONG = "Earth " * 5000


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        (TEXT, {"min_tokens": 17}, "min_tokens", "E1005"),
        (TEXT, {"logit_bias": {"5": 1}}, "logit_bias", "E1602"),
        (TEXT, {"cache_salt": "x"}, "cache_salt", "E1602"),
        (TEXT, {"priority": 1}, "priority", "E1602"),
        (TEXT, {"prompt": [100_000]}, "prompt", "E1103"),
        (TEXT, {"prompt": LONG}, "prompt", "E1002"),
        (TEXT, {"echo": True, "logprobs": 1}, "echo", "E1005"),
        # More texts than there are ever places for: 1024 by default.
        (TEXT, {"prompt": ["Earth"] * 1025}, "prompt", "E1005"),
        (TEXT, {"prompt": ["Earth"] * 9, "n": 128}, "n", "E1005"),
        (CHAT, {"messages": [IMAGE]}, "messages", "E1016"),
        (RESPONSES, {"input": [{"role": "user", "content": [INPUT_IMAGE]}]}, "input", "E1016"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages", "E1002"),
        (CHAT, {"top_logprobs": 3}, "logprobs", "E1005"),
        (CHAT, {"tool_choice": NAMED}, "tool_choice", "E1005"),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "E1005"),
        (
            CHAT,
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            "E1005",
        ),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools", "E1005"),
        (RESPONSES, {"min_tokens": 9}, "min_tokens", "E1005"),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text.format", "E1104"),
        (RESPONSES, {"input": LONG}, "input", "E1002"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_is_refused_by_name(
    api: API, stream: bool, path: str, fields: dict[str, Any], param: str, code: str
) -> None:
    error = api.refused(path, 400, **{**BODIES[path], "stream": stream, **fields})
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert path != RESPONSES or "messages" not in error["message"]


@pytest.mark.parametrize(
    "source", [{"type": "url", "url": URL}, {"type": "base64", "media_type": "image/x", "data": "?"}]
)
def test_images_are_refused_by_each_endpoint(api: API, source: dict[str, str]) -> None:
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    for path, body in (
        ("/v1/messages", {"messages": messages, "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": messages}),
        ("/v1/responses/input_tokens", {"input": [{"role": "user", "content": [INPUT_IMAGE]}]}),
        ("/tokenize", {"messages": [IMAGE]}),
    ):
        response = api.client.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "E1016", path


def test_tokenizing_wants_either_prompt_or_messages(api: API) -> None:
    for body in ({}, {"prompt": "Earth", "messages": ASKED}):
        assert api.refused("/tokenize", 400, **body)["code"] == "E1703"
    assert api.refused("/detokenize", 400, tokens=[-1])["param"] == "tokens"
    assert api.ask("/detokenize", tokens=[10**6]) == {"prompt": ""}
