"""The API's process as a child: the error that ends its start arrives with its facts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from errors.chat import ChatTemplateBroken
from runner.api.supervisor import APIServer
from runner.observability.meter import clear_folder
from runner.settings.paths import make_runtime_dir, metrics_dir
from runner.settings.ports import free_ports
from runner.settings.settings import load_settings
from tests.runner.paced_engine import make_paced_model


def test_an_api_that_can_not_start_raises_its_own_error(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    engine = make_paced_model(tmp_path / "model", 0)
    environment = {
        "HOME": str(tmp_path),
        "CHAT_TEMPLATE": str(template),
        "OPENAI_PORT": str(free_ports(1)[0]),
    }
    settings = load_settings(environment).model_copy(update={"engine_dir": engine.directory})

    async def start() -> None:
        server = APIServer(settings, None, log=lambda line: None, on_failure=lambda failure: True)
        server.begin()
        try:
            await server.wait_ready()
        finally:
            await server.stop()

    with pytest.raises(ChatTemplateBroken) as raised:
        asyncio.run(start())
    assert raised.value.facts["place"] == str(template)
    assert "line 1" in str(raised.value.facts["reason"])


def test_a_server_that_drains_while_its_api_is_down_rejects_clients(tmp_path: Path) -> None:
    engine = make_paced_model(tmp_path / "model", 0)
    port, triton_port = free_ports(2)
    environment = {
        "HOME": str(tmp_path),
        "OPENAI_HOST": "127.0.0.1",
        "OPENAI_PORT": str(port),
        "TRITON_HTTP_PORT": str(triton_port),
    }
    settings = load_settings(environment).model_copy(update={"engine_dir": engine.directory})
    make_runtime_dir(triton_port)
    clear_folder(metrics_dir(triton_port))

    async def run() -> httpx.Response:
        server = APIServer(settings, None, log=lambda line: None, on_failure=lambda failure: True)
        server.begin()
        try:
            await server.wait_ready()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            while server.pid is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await server.drain()
            assert server.pid is None
            async with httpx.AsyncClient(timeout=60) as client:
                return await client.get(f"http://127.0.0.1:{port}/health")
        finally:
            await server.stop()

    assert asyncio.run(run()).status_code == 503
