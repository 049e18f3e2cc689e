"""JSON bodies of the OpenAI-compatible API: the real application, over a model that emits fixed tokens."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path

import httpx

from runner.api.application import API
from runner.api.asgi import make_application
from runner.api.call import Call
from runner.api.limits import TextLimit
from runner.api.messages.bodies import CountTokensBody, MessagesBody
from runner.api.middleware.call_observer import CallObserver
from runner.api.openai.bodies import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from runner.api.responses.bodies import ResponsesBody
from runner.api.served import Served
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import Output, Submit, TokenLogProb
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from runner.observability.meter import Meter
from runner.settings.settings import load_settings
from tests.fuzz.choices import Choices, as_json
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.paced_engine import END_ID, make_tokenizer

_PATHS: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/v1/responses/input_tokens": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
_INNER = (
    *("role", "content", "type", "text", "json_schema", "schema", "name", "function", "arguments", "json"),
    *("regex", "mode", "tool_call_id", "tool_calls", "reasoning", "call_id", "tool_use_id", "output"),
    *("input", "thinking", "format"),
)
_WORDS: tuple[object, ...] = (
    *(1, 2, 0, 0.5, True, "hi", [1, 2], [[1], [2]], ["a", "b"], [{"role": "user", "content": "hi"}], 1 << 31),
    *(
        {"5": 1},
        {"type": "json_object"},
        {"type": "text"},
        {"include_usage": True},
        {"name": "look", "strict": True},
        {"type": "function", "function": {"name": "look"}},
        [{"type": "function", "function": {"name": "look"}}],
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"function": {"name": "look"}}]},
        },
        *("auto", "required", "high", "model", "message", "reasoning", "user", "assistant"),
        {"type": "json_schema", "schema": {"type": "object"}, "name": "look"},
        [{"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}],
        [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "hi"}]}],
        [{"type": "reasoning", "summary": [], "content": [{"text": "hi"}]}],
        [{"type": "function", "name": "look", "input_schema": {}}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}],
        *({"type": "any"}, {"type": "tool", "name": "look"}, {"type": "enabled", "budget_tokens": 5}),
        [2**31 - 1],
        [-1],
    ),
)
JSON = {"content-type": "application/json"}
_HEADERS = ({}, {"content-length": "9" * 5000}, {"content-length": "-1"}, {"content-type": "text/plain"})
_LONGEST_S = 60.0
_loop = asyncio.new_event_loop()


class _FixedTokens:
    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        count = min(submit.max_tokens, 4)
        log_probs = [TokenLogProb(-1.0)] * count if submit.wants_log_probs else []
        yield Output([5] * count, log_probs, "length")


def request_body(data: bytes) -> None:
    _loop.run_until_complete(asyncio.wait_for(_post(Choices(data)), _LONGEST_S))


async def _post(choices: Choices) -> None:
    path = choices.of(tuple(_PATHS))
    document = _document(choices, path)
    async with httpx.AsyncClient(transport=transport(), base_url="http://api") as client:
        content = choices.damaged(document)
        response = await client.post(
            path, content=content, headers={**JSON, **choices.of((*_HEADERS[:1] * 6, *_HEADERS))}
        )
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert set(response.json()) - {"type"} == {"error"}
        assert "Traceback" not in response.text
    elif response.headers["content-type"].startswith("application/json"):
        json.loads(response.text)


def random_document(choices: Choices) -> tuple[bytes, type[Body]]:
    """JSON, and the type of the body that it was made for."""
    path = choices.of(tuple(_PATHS))
    return _document(choices, path), _PATHS[path]


def _document(choices: Choices, path: str) -> bytes:
    fields = (*_PATHS[path].__struct_fields__, *_INNER)
    body = choices.object(fields, _WORDS)
    if choices.below(4):
        body |= {"prompt": "hi"} if path in ("/v1/completions", "/tokenize") else {}
        body |= {"messages": _WORDS[9]} if path in _CHATS else {}
        body |= {"input": "hi"} if path == "/v1/responses" else {}
        body |= {"max_tokens": 5} if path == "/v1/messages" else {}
        body |= {"tokens": [1, 2]} if path == "/detokenize" else {}
    return choices.of((as_json(body), as_json(body), as_json(choices.value(_WORDS, fields)), b"[" * 100_000))


async def _is_ready() -> bool:
    return True


@lru_cache
def transport() -> httpx.ASGITransport:
    settings = load_settings({"ENGINE_DIR": "."})
    template = ChatTemplate({"default": CHAT_TEMPLATE}, {})
    tokenizing = Tokenizing(make_tokenizer(), max_bytes=1 << 16, max_tokens=63)
    model = ModelFacts(tokenizing, (END_ID,), END_ID, 64, 63, template)
    served = Served(model, settings, "transformers", ("model",))

    def generate(request: GenerationRequest, call: Call) -> Generation:
        return Generation(request, model, _FixedTokens())

    folder = Path(tempfile.mkdtemp(prefix="fuzz-metrics-"))
    api = API(served, _is_ready, generate, folder, TextLimit(settings.openai_max_requests))
    application = make_application(api, served)
    watched = CallObserver(application, Meter("openai", folder), is_log_json=False, tracing=None)
    return httpx.ASGITransport(watched)
