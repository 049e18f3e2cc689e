"""GET /openapi.json, made from the types of bodies and answers, without what this server does not support."""

from typing import Any

import msgspec

from engine.kinds import Capability, supports
from runner.api.admin.bodies import LoadAdapterBody, Sleeping, SleepState, UnloadAdapterBody, WakeState
from runner.api.call import EMBEDDINGS_PATH, GENERATION_PATHS, RENDER
from runner.api.error_response import ErrorAnswer
from runner.api.messages.answers import InputTokens, MessageAnswer
from runner.api.messages.bodies import CountTokensBody, MessagesBody
from runner.api.middleware.keys import ADMIN_PATHS, is_guarded
from runner.api.openai.answers import (
    Answer,
    ChatChoice,
    CompletionChoice,
    Embeddings,
    Model,
    Models,
    Rendered,
    State,
    Text,
    Tokens,
)
from runner.api.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from runner.api.openai.guides import GUIDE_FIELDS
from runner.api.openai.requests import DEFAULT_COMPLETION_TOKENS, PARAMETERS
from runner.api.responses.answers import InputTokens as ResponseInputTokens
from runner.api.responses.answers import Response
from runner.api.responses.bodies import ResponsesBody
from runner.api.served import Served

_OPERATIONS: tuple[tuple[str, str, str, type | None, type | None], ...] = (
    ("post", "/v1/chat/completions", "The model's answer to a chat", ChatBody, Answer[ChatChoice]),
    ("post", "/v1/completions", "The continuation of a prompt", CompletionBody, Answer[CompletionChoice]),
    ("post", EMBEDDINGS_PATH, "A vector for each input", EmbeddingBody, Embeddings),
    ("post", "/v1/responses", "The model's answer, by the Responses API", ResponsesBody, Response),
    ("post", "/v1/responses/input_tokens", "Tokens of a prompt", ResponsesBody, ResponseInputTokens),
    ("post", "/v1/messages", "The model's answer, by the Messages API", MessagesBody, MessageAnswer),
    ("post", "/v1/messages/count_tokens", "Tokens of a prompt", CountTokensBody, InputTokens),
    ("get", "/v1/models", "What is served", None, Models),
    ("get", "/v1/models/{name}", "One of what is served", None, Model),
    ("post", "/tokenize", "Token ids of a prompt or a chat", TokenizeBody, Tokens),
    ("post", "/detokenize", "The text of token ids", DetokenizeBody, Text),
    ("get", "/health", "Whether this process answers", None, State),
    ("get", "/ready", "Whether the engine answers and is awake", None, State),
    ("get", "/metrics", "Metrics for Prometheus", None, None),
    ("post", "/v1/load_lora_adapter", "Load a LoRA adapter", LoadAdapterBody, None),
    ("post", "/v1/unload_lora_adapter", "Unload a LoRA adapter", UnloadAdapterBody, None),
    ("post", "/sleep", "Have the engine free its memory", None, SleepState),
    ("post", "/wake_up", "Wake the engine", None, WakeState),
    ("get", "/is_sleeping", "Whether the engine sleeps", None, Sleeping),
    ("post", "/v1/chat/completions/render", "Token ids of a chat's prompt", ChatBody, Rendered),
    ("post", "/v1/completions/render", "Token ids of each prompt", CompletionBody, list[Rendered]),
    ("post", "/v1/responses/render", "Token ids of a prompt", ResponsesBody, Rendered),
    ("post", "/v1/messages/render", "Token ids of a prompt", MessagesBody, Rendered),
    ("get", "/server_info", "What routers ask of a server", None, None),
    ("get", "/kv_event_sources", "Where events of the KV cache are", None, None),
)
_ROUTERS = (RENDER, "/server_info", "/kv_event_sources")
"""Ends of the paths that only routers need."""
_ADMIN_NEEDS: dict[str, Capability] = {
    path: "load_adapter" if path.endswith("adapter") else "sleep" for path in ADMIN_PATHS
}
_CHATS = (ChatBody, ResponsesBody, MessagesBody, CountTokensBody)
"""Bodies that are orders of a chat."""
_REF = "#/components/schemas/{name}"
_FIELDS_OF: dict[Capability, tuple[str, ...]] = {
    "log_probs": ("logprobs", "top_logprobs"),
    "min_p": ("min_p",),
    "logit_bias": ("logit_bias",),
    "guides": GUIDE_FIELDS,
    "chat_guides": ("thinking_token_budget",),
}
"""Fields that need a capability of the engine."""


def make_document(served: Served) -> dict[str, Any]:
    operations = [each for each in _OPERATIONS if _is_offered(each[1], served)]
    types = {kind for *_, body, answer in operations for kind in (body, answer) if kind} | {ErrorAnswer}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    refs = dict(zip(ordered, schemas, strict=True))
    for kind in (*_CHATS, CompletionBody):
        if kind in types:
            _fit(components[kind.__name__]["properties"], served)
    if "max_new_tokens" in served.model.sampling_defaults:
        for chat, field in ((ChatBody, "max_tokens"), (ResponsesBody, "max_output_tokens")):
            if chat in types:
                components[chat.__name__]["properties"][field]["default"] = served.default_max_tokens
    if CompletionBody in types:
        fields = components[CompletionBody.__name__]["properties"]
        fields["max_tokens"]["default"] = DEFAULT_COMPLETION_TOKENS
    paths: dict[str, Any] = {}
    for method, path, summary, body, answer in operations:
        good = {"description": "Done"} | ({} if answer is None else {"content": _json(refs[answer])})
        failed = {"description": "Refused or failed", "content": _json(refs[ErrorAnswer])}
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": good, "default": failed}}
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _json(refs[body])}
        if "{name}" in path:
            name = {"in": "path", "name": "name", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        if path in ADMIN_PATHS or (served.settings.api_keys and is_guarded(path)):
            operation["security"] = [{"key": []}]
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


def _is_offered(path: str, served: Served) -> bool:
    if path in ADMIN_PATHS:
        return bool(served.settings.admin_api_keys) and supports(served.engine_kind, _ADMIN_NEEDS[path])
    if path.endswith(_ROUTERS) and served.settings.router_protocol is None:
        return False
    path = path.removesuffix("/count_tokens").removesuffix("/input_tokens").removesuffix(RENDER)
    operation = GENERATION_PATHS.get(path)
    if operation is not None and (path == EMBEDDINGS_PATH) != (served.model.pooling is not None):
        return False
    return operation != "chat" or served.model.chat.exists


def _fit(fields: dict[str, Any], served: Served) -> None:
    """Leave out fields that the engine does not support; add the defaults of the others."""
    for capability, names in _FIELDS_OF.items():
        if not supports(served.engine_kind, capability):
            for name in names:
                fields.pop(name, None)
    for name in PARAMETERS:
        if name in fields:
            fields[name]["default"] = getattr(served.sampling, name)


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
