"""Paths that are nearly right: served, or refused with what was probably meant; and methods."""

import re
from pathlib import Path

import httpx
import pytest

from errors.api import UnknownEndpoint
from runner.api.middleware.nearest_path import nearest_path
from tests.runner.api.writing_model import WritingModel

ENDPOINTS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{name:path}"),
    *("/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens"),
    *("/tokenize", "/detokenize", "/health", "/ready", "/metrics", "/openapi.json", "/"),
]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/m/chat/completions", "/v1/chat/completions"),
        ("/api/chat", "/v1/chat/completions"),
        ("/api/generate", "/v1/completions"),
        ("/v1/messages/v1/messages", "/v1/messages"),
        ("/V1/Models", "/v1/models"),
        ("/v1", "/v1/models"),
        ("/v1/health", "/health"),
        ("/v1/audio/speech", None),
        ("/favicon.ico", None),
        ("/" + "a" * 100_000, None),
    ],
)
def test_the_endpoint_that_was_probably_meant(path: str, meant: str | None) -> None:
    assert nearest_path(path, ENDPOINTS) == meant


def test_what_is_refused_says_what_there_is(tmp_path: Path) -> None:
    model = WritingModel(tmp_path)
    response = model.post("/chat/completions")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == UnknownEndpoint.code
    assert "did you mean /v1/chat/completions?" in response.json()["error"]["message"]
    for method, path, allowed in [
        ("GET", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/models", "GET, HEAD"),
    ]:
        response = model.request(method, path)
        assert response.status_code == 405
        assert sorted(response.headers["allow"].split(", ")) == allowed.split(", ")
        assert response.json()["error"]["code"] == UnknownEndpoint.code


def test_a_slash_at_the_end_is_never_redirected(tmp_path: Path) -> None:
    """The HTTP server takes it off, so that the application sees it only in another ASGI server."""
    response = WritingModel(tmp_path).post("/v1/completions/", prompt="a")
    assert response.status_code == 404
    assert "did you mean /v1/completions?" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models", "/v1/models/model"]
)
def test_a_head_has_the_status_and_headers_of_a_get(tmp_path: Path, path: str) -> None:
    model = WritingModel(tmp_path)
    got, head = model.request("GET", path), model.request("HEAD", path)
    assert got.status_code == head.status_code == 200

    def described(response: httpx.Response) -> dict[str, str]:
        return {name: value for name, value in response.headers.items() if name != "x-request-id"}

    assert described(got) == described(head)


def test_the_page_is_one_file_with_headers_that_keep_it_here(tmp_path: Path) -> None:
    model = WritingModel(tmp_path)
    answer = model.request("GET", "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not [word for word in ("unsafe", "http") if word in policy]
    assert len(answer.content) < 80_000
    forbidden = ('<link rel="stylesheet', "innerHTML", "@import", "https://")
    assert not [word for word in forbidden if word in answer.text]
    libraries = re.findall(r'src="(.*?)"', answer.text)
    assert libraries == ["vendor/highlight.min.js", "vendor/temml.min.js"]
    answers = [model.request("GET", f"/{library}") for library in libraries]
    assert {each.headers["content-type"] for each in answers} == {"text/javascript; charset=utf-8"}
    assert sum(len(each.content) for each in answers) < 400_000
