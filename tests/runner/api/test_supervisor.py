"""The API's process as a child: the error that ends its start arrives with its facts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errors.chat import ChatTemplateBroken
from runner.api.supervisor import OpenAIServer
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
        server = OpenAIServer(settings, None, log=lambda line: None)
        await server.start()
        try:
            await server.wait_ready()
        finally:
            await server.stop()

    with pytest.raises(ChatTemplateBroken) as raised:
        asyncio.run(start())
    assert raised.value.facts["place"] == str(template)
    assert "line 1" in str(raised.value.facts["reason"])
