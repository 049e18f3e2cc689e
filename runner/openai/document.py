"""GET /openapi.json: the API described, from the bodies and answers themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from runner.openai.answers import (
    Answer,
    ChatChoice,
    CompletionChoice,
    ErrorAnswer,
    Model,
    Models,
    State,
    Text,
    Tokens,
)
from runner.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

_OPERATIONS: tuple[tuple[str, str, str, type | None, type | None], ...] = (
    ("post", "/v1/chat/completions", "The model's answer to a chat", ChatBody, Answer[ChatChoice]),
    ("post", "/v1/completions", "The continuation of a prompt", CompletionBody, Answer[CompletionChoice]),
    ("get", "/v1/models", "What is served", None, Models),
    ("get", "/v1/models/{name}", "One of what is served", None, Model),
    ("post", "/tokenize", "Token ids of a prompt or a chat", TokenizeBody, Tokens),
    ("post", "/detokenize", "The text of token ids", DetokenizeBody, Text),
    ("get", "/health", "Whether this process answers", None, State),
    ("get", "/ready", "Whether Triton and the engine answer", None, State),
    ("get", "/metrics", "Metrics for Prometheus", None, None),
)
_REF = "#/components/schemas/{name}"


def make_document() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = {kind for *_, body, answer in _OPERATIONS for kind in (body, answer) if kind} | {ErrorAnswer}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    refs = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, summary, body, answer in _OPERATIONS:
        operation: dict[str, Any] = {"summary": summary, "responses": _responses(answer, refs)}
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _json(refs[body])}
        if "{name}" in path:
            name = {"in": "path", "name": "name", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        paths[path] = {method: operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "cog-triton's OpenAI-compatible API", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _responses(answer: type | None, refs: dict[type, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done"}
    if answer is not None:
        good["content"] = _json(refs[answer])
    return {"200": good, "default": {"description": "Refused or failed", "content": _json(refs[ErrorAnswer])}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
