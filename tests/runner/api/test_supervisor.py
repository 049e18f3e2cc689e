"""The API's process as a child: the error that ends its start arrives with its facts."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from errors.chat import ChatTemplateBroken
from runner.api.supervisor import APIServer, APIServers
from tests.runner.api.processes import StandInEngineServer, settings_of, started
from tests.runner.servers import DEADLINE_S

pytestmark = pytest.mark.slow


async def test_an_api_that_can_not_start_raises_its_own_error(tmp_path: Path) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text("{% if %}")
    settings, _ = settings_of(tmp_path, CHAT_TEMPLATE=str(template))

    servers = APIServers(settings, None, None, log=lambda line: None, on_failure=lambda failure: True)
    servers.begin()
    with pytest.raises(ChatTemplateBroken) as raised:
        await servers.wait_ready()
    await servers.stop()
    assert raised.value.facts["place"] == str(template)
    assert "line 1" in str(raised.value.facts["reason"])


async def test_clients_that_wait_for_a_new_api_are_served_though_it_does_not_know_the_engine_yet(
    tmp_path: Path,
) -> None:
    """Check the state after a SIGKILL of the API server: its port is open all the time."""
    settings, port = settings_of(tmp_path)

    async with started(settings, StandInEngineServer(1.0)):
        assert await asyncio.gather(*(ask(port, 1) for _ in range(4))) == [{200}] * 4


async def test_a_server_that_drains_while_its_api_is_down_rejects_clients(tmp_path: Path) -> None:
    settings, port = settings_of(tmp_path)

    async with started(settings, StandInEngineServer(1.0), starts_again=False) as servers:
        await servers.wait_ready()
        (process,) = servers.processes
        await kill(process)
        await servers.drain()
        assert process.pid is None
        assert await ask(port, 1) == {503}


async def kill(process: APIServer) -> None:
    """Kill a process that is not started again, because it failed too often."""
    os.kill(process.pid, signal.SIGKILL)
    while process.pid is not None:  # noqa: ASYNC110 - nothing tells us
        await asyncio.sleep(0.005)


async def ask(port: int, count: int) -> set[int]:
    """Return the statuses of ``count`` requests, each on a connection of its own."""
    url, body = f"http://127.0.0.1:{port}/v1/completions", {"prompt": "hi", "max_tokens": 3}
    statuses = set()
    for _ in range(count):
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            statuses.add((await client.post(url, json=body)).status_code)
    return statuses


async def test_clients_of_a_process_that_stays_down_are_served_by_the_others(tmp_path: Path) -> None:
    settings, port = settings_of(tmp_path)
    settings = settings.model_copy(update={"openai_processes": 2})

    async with started(settings, StandInEngineServer(1.0), starts_again=False) as servers:
        await servers.wait_ready()
        first = servers.processes[0]
        await kill(first)
        assert await ask(port, 20) == {200}  # Linux gives the dead one half of them.
        assert first.pid is None


async def test_several_processes_share_the_port_and_replace_each_other(tmp_path: Path) -> None:
    settings, port = settings_of(tmp_path)
    settings = settings.model_copy(update={"openai_processes": 3, "openai_max_requests": 5})

    async with started(settings, StandInEngineServer(1.0)) as servers:
        await servers.wait_ready()
        first, *others = servers.processes
        killed = first.pid
        assert killed is not None
        assert len({process.pid for process in servers.processes}) == 3
        assert await ask(port, 20) == {200}
        os.kill(killed, signal.SIGKILL)
        assert await ask(port, 20) == {200}
        while first.pid in (None, killed) or not first.is_serving:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert [process.restarts for process in others] == [0, 0]
        await servers.drain()
        assert [process.pid for process in servers.processes] == [None] * 3
        assert await ask(port, 1) == {503}
