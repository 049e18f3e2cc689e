"""LiteLLM's proxy in front of a scripted model, LlamaIndex and instructor: programs of ``.venv-gateways``.

They need an older openai than the other clients.
"""

import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from runner.settings.ports import free_ports
from tests.clients.conftest import HOST, ROOT, Runner, Server
from tests.clients.script import ANSWER, TEMPERATURE, WEATHER
from tests.clients.test_tools import TOOLS, chat, user

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(
        not (ROOT / ".venv-gateways").is_dir(), reason="no .venv-gateways: make test-clients makes it"
    ),
]

BIN = ROOT / ".venv-gateways" / "bin"
ALONE = {"PATH": os.defpath, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(ROOT)}
"""All that these programs have of this environment."""
KEY = "sk-" + secrets.token_hex(32)
"""Key of the proxy, which does not start without."""
_DEADLINE_S = 500.0


class Proxy(Server):
    """LiteLLM's proxy; its model ``weather`` is the runner's."""

    def __init__(self, scripted: Runner, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://{HOST}:{port}"
        backend = {
            "model": f"openai/{scripted.model()}",
            "api_base": f"{scripted.openai_url}/v1",
            "api_key": "none",
        }
        models = [{"model_name": "weather", "litellm_params": backend}]
        config = {"model_list": models, "general_settings": {"master_key": KEY}}
        (folder / "config.yaml").write_text(json.dumps(config))
        command = [BIN / "litellm", "--config", folder / "config.yaml", "--host", HOST, "--port", str(port)]
        environment = {**ALONE, "HOME": str(folder)}
        super().__init__([*command, "--telemetry", "False"], folder / "litellm.log", folder, environment)

    def wait_ready(self) -> None:
        self.wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/liveliness", timeout=5):
                return True
        except OSError:
            return False


@pytest.fixture(scope="module")
def proxy(scripted: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy(scripted, tmp_path_factory.mktemp("litellm"))
    yield proxy
    proxy.close()


def test_llamaindex_and_instructor(proxy: Proxy, scripted: Runner) -> None:
    """While the proxy starts."""
    program = [BIN / "python", "-m", "tests.clients.programs.older_clients"]
    done = subprocess.run(
        [*program, f"{scripted.openai_url}/v1", scripted.model()],
        env=ALONE,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert got["agent"] == {"answer": ANSWER, "asked": ["Paris"]}
    paris = {"name": "Paris", "is_large": True}
    assert got["cities"] == {"TOOLS": paris, "JSON_SCHEMA": paris, "JSON": paris}


@pytest.mark.parametrize("streams", [False, True])
def test_litellms_proxy_passes_calls_and_their_results_on(proxy: Proxy, streams: bool) -> None:
    proxy.wait_ready()
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0)
    messages: list[Any] = [user(WEATHER)]
    message = chat(client, "weather", messages, streams=streams).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages.append({"role": "assistant", "tool_calls": [call.model_dump()]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": TEMPERATURE})
    assert chat(client, "weather", messages, streams=streams).choices[0].message.content == ANSWER


def test_litellms_proxy_offers_anthropics_api_of_a_chat_model(proxy: Proxy) -> None:
    proxy.wait_ready()
    claude = anthropic.Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0)
    tools: list[Any] = [{"name": "get_weather", "input_schema": TOOLS[0]["function"]["parameters"]}]
    answer = claude.messages.create(model="weather", max_tokens=500, messages=[user(WEATHER)], tools=tools)
    (use,) = [part for part in answer.content if part.type == "tool_use"]
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
