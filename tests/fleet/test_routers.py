"""Routers of other projects, made for vLLM and SGLang, in front of two servers that speak vLLM's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from perf.routers import router
from runner.settings.ports import free_ports
from tests.fleet.servers import needs_environment
from tests.runner.api.test_three_apis import (
    Told,
    chat_events_told,
    chat_told,
    events_of,
    message_events_told,
    message_told,
    response_events_told,
    response_told,
)
from tests.runner.paced_engine import PacedModel
from tests.runner.scripted_engine import HERMES, hermes_call, make_scripted_model, write_script
from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, wait_until

pytestmark = [pytest.mark.long, pytest.mark.servers, needs_environment]

ROUND_ROBIN = ("--policy", "round_robin")
BLOCK = 16
PREFIXES, PREFIX_TOKENS, ASKED_AGAIN = 8, 512, 2
"""Each prefix is asked for as often as there are servers."""
GREETING, QUESTION = ([{"role": "user", "content": text}] for text in ("Hello", "Is it warm in Paris?"))
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "", "parameters": PARAMETERS}
CALLED = Told(calls=[("weather", '{"city": "Paris"}')])
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": GREETING, "max_tokens": 9}),
    (CHAT, {"messages": QUESTION, "tools": [{"type": "function", "function": TOOL}]}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 9}),
    (RESPONSES, {"input": "Hello", "max_output_tokens": 9}),
    (RESPONSES, {"input": "Is it warm in Paris?", "tools": [{"type": "function", **TOOL}]}),
    (MESSAGES, {"messages": GREETING, "max_tokens": 9}),
    (
        MESSAGES,
        {"messages": QUESTION, "max_tokens": 99, "tools": [{"name": "weather", "input_schema": PARAMETERS}]},
    ),
]
WITHOUT = {"sglang-router": {MESSAGES}}
"""Paths that a router does not know."""


class Server:
    """One server, with its address and that of its events."""

    def __init__(self, folder: Path, model: PacedModel, script: str) -> None:
        port, events = free_ports(2)
        self.url, self.events = f"http://{HOST}:{port}", f"tcp://{HOST}:{events}"
        settings = {"OPENAI_HOST": HOST, "OPENAI_PORT": str(port), "OPENAI_MODELS": "m"}
        settings |= {"ROUTER_PROTOCOL": "vllm", "KV_EVENTS": f"tcp://*:{events}", "COG_TRITON_SCRIPT": script}
        folder.mkdir()
        self.cog = CogUnderTest(model, folder, wait=False, **settings)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("servers")
    model = make_scripted_model(folder / "model", HERMES)
    script = write_script(folder, {"when": "Paris?", "answer": hermes_call("weather", city="Paris")})
    found = [Server(folder / name, model, script) for name in "AB"]
    try:
        for each in found:
            each.cog.server.wait_ready(DEADLINE_S)
        yield found
    finally:
        for each in found:
            each.cog.close()


def ask(url: str, path: str, **body: Any) -> httpx.Response:
    response = httpx.post(url + path, json={"model": "m", **body}, timeout=DEADLINE_S)
    assert response.status_code == 200, response.text
    return response


def told(url: str, path: str, body: dict[str, Any]) -> list[Told]:
    """Return what the whole answer and the stream tell."""
    whole, events = ask(url, path, **body).json(), events_of(ask(url, path, **body, stream=True).content)
    if path == CHAT:
        return [chat_told(whole["choices"][0]["message"]), chat_events_told(events)]
    if path == RESPONSES:
        return [response_told(whole), response_events_told(events)]
    if path == MESSAGES:
        return [message_told(whole), message_events_told(events)]
    texts = ["".join(each["choices"][0]["text"] for each in some) for some in ([whole], events)]
    return [Told(text) for text in texts]


@pytest.mark.parametrize("name", ["vllm-router", "sglang-router", "smg"])
def test_every_api_tells_the_same_through_a_router(name: str, servers: list[Server], tmp_path: Path) -> None:
    with router(name, [each.url for each in servers], tmp_path, *ROUND_ROBIN) as front:
        for path, body in ASKED:
            if path in WITHOUT.get(name, ()):
                continue
            whole, streamed = told(servers[0].url, path, body)
            assert whole == streamed == (CALLED if "tools" in body else whole)
            for _ in servers:
                assert told(front.url, path, body) == [whole, streamed], path


def cached_tokens(url: str, path: str, **body: Any) -> int:
    usage = ask(url, path, **body, max_tokens=1).json()["usage"]
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def measure(url: str, servers: list[Server], numbers: Iterator[int]) -> int:
    """Return the cached tokens of prompts whose prefixes are in the cache of one server, by turns."""
    prefixes = [[next(numbers), *([7] * (PREFIX_TOKENS - 1))] for _ in range(PREFIXES)]
    for prefix, server in zip(prefixes, cycle(servers), strict=False):
        cached_tokens(server.url, "/v1/completions", prompt=[*prefix, 1])
    asked = [[*prefix, 50 + again, *([9] * BLOCK)] for prefix in prefixes for again in range(ASKED_AGAIN)]
    return sum(cached_tokens(url, "/v1/completions", prompt=each) for each in asked)


def finds_chats(url: str, servers: list[Server], numbers: Iterator[int]) -> bool:
    """Return True if each server gets a chat that it has in its cache."""
    found = []
    for server in servers:
        text = f"{next(numbers)}{'Once upon a time. ' * 40}"
        messages = [{"role": "user", "content": text}]
        cached_tokens(server.url, CHAT, messages=messages)
        found.append(cached_tokens(url, CHAT, messages=messages) > PREFIX_TOKENS // 2)
    return all(found)


def test_kv_aware_routing_finds_more_in_the_caches_than_round_robin(
    servers: list[Server], tmp_path: Path
) -> None:
    """The router learns of blocks some time after they are there."""
    urls, numbers = [each.url for each in servers], count(10)
    options = ["--policy", "kv_aware", "--kv-event-model", "m", "--kv-event-block-size", str(BLOCK)]
    for each in servers:
        options += ["--kv-event-source", f"{each.url}={each.events}"]
    total = PREFIXES * ASKED_AGAIN * PREFIX_TOKENS
    with router("vllm-router", urls, tmp_path / "kv", *options) as front:
        wait_until(lambda: measure(front.url, servers, numbers) == total)
        wait_until(lambda: finds_chats(front.url, servers, numbers))
    with router("vllm-router", urls, tmp_path / "turns", *ROUND_ROBIN) as front:
        assert measure(front.url, servers, numbers) == total // ASKED_AGAIN
