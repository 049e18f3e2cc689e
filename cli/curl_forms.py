"""The documented requests as curl commands, which ``demo`` runs, and what is printed once one is ready."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.machine.root import IS_CHECKOUT
from runner.settings.cog_settings import open_port_warning
from runner.settings.ports import LOOPBACK
from runner.settings.settings import Settings

PROMPT = "What is machine learning?"
KEY = "$KEY"
"""The key in a printed command: the shell puts it in, so that no secret is printed."""
_MAX_TOKENS = 24
_JSON = "Content-Type: application/json"
_WITH_KEY = f"Authorization: Bearer {KEY}"


@dataclass(frozen=True)
class CurlForm:
    """One request: its name, and the parts of its curl command."""

    name: str
    url: str
    body: dict[str, Any]
    headers: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        headers = [argument for header in self.headers for argument in ("-H", header)]
        return ["curl", "-s", "-N", "-X", "POST", *headers, "-d", json.dumps(self.body), self.url]

    @property
    def command(self) -> str:
        quoted = (f'"{header}"' if KEY in header else f"'{header}'" for header in self.headers)
        headers = "".join(f" \\\n  -H {header}" for header in quoted)
        return f"curl -s -N -X POST{headers} \\\n  -d '{json.dumps(self.body)}' \\\n  {self.url}"


def embedding_form(openai_url: str, *, has_keys: bool = False) -> CurlForm:
    """Return the request of an embedding model, which takes no other."""
    headers = _headers(_JSON, has_keys=has_keys)
    return CurlForm("OpenAI's API, an embedding", f"{openai_url}/v1/embeddings", {"input": PROMPT}, headers)


def chat_form(openai_url: str, *, has_keys: bool = False) -> CurlForm:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": _MAX_TOKENS, "seed": 0}
    headers = _headers(_JSON, has_keys=has_keys)
    return CurlForm("OpenAI's API, a chat", f"{openai_url}/v1/chat/completions", body, headers)


def curl_forms(
    cog_port: int, triton_port: int, openai_port: int = 0, *, has_keys: bool = False
) -> list[CurlForm]:
    """Return forms for Cog (JSON and events), Triton's ensemble, the slot and, with ``openai_port``, a chat.

    ``has_keys``: API_KEYS is set, so all forms but those of Cog send a key.
    """
    cog = f"http://localhost:{cog_port}/predictions"
    models = f"http://localhost:{triton_port}/v2/models"
    prediction = {"input": {"prompt": PROMPT, "max_tokens": _MAX_TOKENS, "seed": 0}}
    of_triton = _headers(has_keys=has_keys)
    chat = chat_form(f"http://localhost:{openai_port}", has_keys=has_keys)
    return [
        CurlForm("Cog, JSON", cog, prediction, (_JSON,)),
        CurlForm("Cog, server-sent events", cog, prediction, (_JSON, "Accept: text/event-stream")),
        CurlForm(
            "Triton, ensemble (text in, text out)",
            f"{models}/ensemble/generate",
            {"text_input": PROMPT, "max_tokens": _MAX_TOKENS, "bad_words": "", "stop_words": ""},
            of_triton,
        ),
        CurlForm(
            "Triton, engine slot (token ids in, token ids out)",
            f"{models}/tensorrt_llm/generate_stream",
            {"input_ids": [300, 301, 302], "input_lengths": 3, "request_output_len": 4, "streaming": True},
            of_triton,
        ),
        *([chat] if openai_port else []),
    ]


def ready_lines(settings: Settings, *, cog_host: str | None, embeds: bool = False) -> Iterator[str]:
    """Yield what is printed once a server takes requests: the page, one request, and where the rest is.

    ``cog_host``: address of Cog's server, None if there is none. ``embeds``: the model returns embeddings.
    """
    has_keys, port = bool(settings.api_keys), settings.openai_port
    openai = f"http://{_reached_at(settings.openai_host)}:{port}"
    form = embedding_form(openai, has_keys=has_keys) if embeds else chat_form(openai, has_keys=has_keys)
    if not port:
        form = curl_forms(settings.cog.port, settings.triton_http_port)[0]
    page = f"the page to chat is {openai}/; " if port and not embeds else ""
    yield f"ready: {page}from a terminal:\n\n{form.command}\n"
    if has_keys and port:
        yield "KEY is one of API_KEYS."
    if port:
        yield f"OpenAI   {openai}/v1"
    if cog_host is not None:
        yield f"Cog      http://{_reached_at(cog_host)}:{settings.cog.port}"
        triton = f"{settings.triton_http_port} (HTTP), {settings.triton_grpc_port} (gRPC)"
        yield f"Triton   ports {triton}, {settings.triton_metrics_port} (metrics)"
        if has_keys and (warning := open_port_warning(cog_host, settings.cog.port)):
            yield warning
    if IS_CHECKOUT or port:
        yield f"More     {'docs/README.md' if IS_CHECKOUT else f'{openai}/openapi.json'}"
    yield "Ctrl-C stops it."


def _headers(*headers: str, has_keys: bool) -> tuple[str, ...]:
    return (*headers, _WITH_KEY) if has_keys else headers


def _reached_at(host: str) -> str:
    return "localhost" if host in (LOOPBACK, "0.0.0.0", "") else host  # noqa: S104
