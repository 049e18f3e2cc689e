"""Answers of Triton that the runner counts as heartbeats, from a stand-in (``misbehaving_server``)."""

from collections.abc import Sequence

import pytest
from aiohttp import web

from runner.supervision import health
from runner.triton_server.supervisor import Heartbeat
from tests.runner.misbehaving_server import Handler, answer, be_silent, break_off, serving


async def ask(handler: Handler, times: int = 1) -> list[bool]:
    async with serving(handler) as url:
        heartbeat = Heartbeat(url, f"{url}/metrics")
        return [await heartbeat.is_alive() for _ in range(times)]


def counting(counts: Sequence[str], probes: list[str]) -> Handler:
    """Return a handler with these counts. A probe is noted, and its connection closed."""
    lines = iter(counts)

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text=f"# TYPE x counter\n{next(lines)}\n")
        probes.append(request.path)
        request.transport.abort()
        return web.Response()

    return handle


async def test_triton_is_alive_while_it_runs_requests_of_others() -> None:
    """A request of ours would wait behind them."""
    probes: list[str] = []
    line = 'nv_inference_exec_count{model="tensorrt_llm",version="1"}'
    counts = [f"{line} {count}" for count in (5, 7, 7, 8)]
    assert await ask(counting(counts, probes), 4) == [True, True, False, True]
    assert probes == ["/v2/models/tensorrt_llm/generate"]


async def test_metrics_without_the_slot_say_nothing() -> None:
    other = 'nv_inference_exec_count{model="ensemble",version="1"} 5'
    assert await ask(counting([other, "nothing"], []), 2) == [False, False]


@pytest.mark.parametrize(
    ("handler", "is_alive"),
    [
        (answer(200, b"{}"), True),
        (answer(400, b'{"error": "E2107 EngineCrashed: it ended"}'), True),
        (break_off, False),
    ],
)
async def test_any_answer_of_the_slot_is_a_sign_of_life(handler: Handler, is_alive: bool) -> None:
    assert await ask(handler) == [is_alive]


async def test_a_silent_triton_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.2)

    async def wait(request: web.Request) -> web.Response:
        await be_silent(request)
        return web.Response()

    assert await ask(wait) == [False]
