"""Keys are wanted where something is told; a call knows the client's, which bounds its priority."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from errors.requests import InvalidInput
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from tests.runner.api.apis import error_of
from tests.runner.api.writing_model import WritingModel

TEXT = "/v1/completions"


@pytest.fixture
def model(tmp_path: Path) -> WritingModel:
    return WritingModel(tmp_path, API_KEYS="first key, second key")


def test_keys_are_wanted_where_something_is_told_and_nowhere_else(model: WritingModel) -> None:
    wrong = ({}, {"Authorization": "Bearer first"}, {"Authorization": "second key"}, {"x-api-key": "second"})
    for headers in wrong:
        for path in (TEXT, "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"):
            response = model.request("POST", path, json={}, headers=headers)
            assert (response.status_code, error_of(response)["code"]) == (401, "E1604")
        assert model.request("GET", "/v1/models", headers=headers).status_code == 401
    response = model.post("/v1/messages")
    assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
    assert model.request("GET", "/health").status_code == 200
    assert "second key" not in repr(model.served.settings)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "Bearer second key"}, "second key"),
        ({"x-api-key": "first key"}, "first key"),
        ({"x-api-key": "first key", "Authorization": "Bearer other"}, "first key"),
    ],
)
def test_a_call_knows_its_key(model: WritingModel, headers: dict[str, str], key: str) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert model.request("POST", TEXT, json=body, headers=headers).status_code == 200
    assert model.keys == [key]


def test_a_request_has_the_priority_that_its_key_may_ask_for() -> None:
    request = GenerationRequest("hi", 1, 0, (), Sampling())
    assert request.with_priority({"batch": 5}, "batch").priority == 5
    with pytest.raises(InvalidInput, match=re.escape("(MIN_PRIORITY), but is -2")):
        replace(request, priority=-2).with_priority({}, "")
