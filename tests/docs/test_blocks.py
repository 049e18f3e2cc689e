"""Every block of code in README and docs is run, or marked with what tests it or why nothing does."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builder.config.file import parse_config
from builder.kinds import engine_plan
from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports
from tests.builder.trtllm.old.old_configs import QUICK_START
from tests.docs.blocks import Block, blocks_of
from tests.docs.test_documents import DOCUMENTS

BLOCKS = [block for page in DOCUMENTS for block in blocks_of(page)]
KINDS = ("served", "typed", "config")
PORTS = {
    "PORT": 5000,
    "TRITON_HTTP_PORT": 8000,
    "TRITON_GRPC_PORT": 8001,
    "TRITON_METRICS_PORT": 8002,
    "OPENAI_PORT": 9000,
}
TINY = SOURCE_ROOT / "builder" / "examples" / "tiny"
_TIMEOUT_S = 300.0
_STRICT_CURL = """curl() {
  local strict=--fail-with-body
  # The prediction may have ended by itself: a tiny model's text can be short.
  [[ "$*" == */cancel ]] && strict=
  command curl $strict --no-progress-meter --max-time 120 "$@"
}
"""


def marked(value: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if (block.mark, block.value) == ("run", value)]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"{block.page.name}-{block.line}")


def test_every_block_has_a_mark_that_means_something() -> None:
    """The line before it says what tests it, or why nothing does: tests/docs/blocks.py."""
    assert [(block.page, block.line) for block in BLOCKS if not block.mark] == []
    values = {mark: {each.value for each in BLOCKS if each.mark == mark} for mark in ("run", "tested")}
    assert values["run"] == set(KINDS)
    assert [path for path in values["tested"] if not (SOURCE_ROOT / path).exists()] == []


@marked("config")
def test_a_build_config_can_be_planned(block: Block) -> None:
    has_model = "model_id" in yaml.safe_load(block.text)
    text = block.text if has_model else f"engine: vllm\nmodel_id: someone/model\n{block.text}"
    assert engine_plan(parse_config(text.encode(), shown=block.page.name, folder=None).config).steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    for name in ("builder", "scripts"):
        (folder / name).symlink_to(SOURCE_ROOT / name)
    (folder / "config.yaml").write_text("{engine: transformers, model_path: model}")
    shutil.copytree(TINY / "model", folder / "model")
    shutil.copy(TINY / "model" / "config.json", folder / "config.json")
    (folder / "old.yaml").write_text(QUICK_START)
    return folder


@pytest.mark.servers
@pytest.mark.skipif(engine_python() == sys.executable, reason="needs the engine environment (make setup)")
@marked("typed")
def test_commands_do_what_they_say(block: Block, folder: Path) -> None:
    assert typed(block.text, folder, {}).strip()


@pytest.fixture(scope="module")
def environment(folder: Path) -> Iterator[dict[str, str]]:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    variables = ports | {"TMPDIR": str(folder), "COG_TRITON_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "cli", "build", TINY / "config.yaml", "-o", folder / "tiny.tar"]
    subprocess.run(command, cwd=SOURCE_ROOT, env={**os.environ, **variables}, check=True, capture_output=True)
    extra = {**variables, "COG_WEIGHTS": str(folder / "tiny.tar")}
    extra |= {"TRITON_HOST": "127.0.0.1", "OPENAI_HOST": "127.0.0.1"}
    port = int(ports["PORT"])
    with CogServer("runner", host="127.0.0.1", port=port, log_path=folder / "log", extra=extra) as server:
        server.wait_ready(_TIMEOUT_S)
        yield variables


@pytest.mark.servers
@pytest.mark.skipif(engine_python() == sys.executable, reason="needs the engine environment (make setup)")
@marked("served")
def test_commands_work_with_a_served_model(block: Block, folder: Path, environment: dict[str, str]) -> None:
    text = block.text
    for name, port in PORTS.items():
        text = text.replace(f"localhost:{port}", f"127.0.0.1:{environment[name]}")
    output = typed(text, folder, environment)
    assert output.strip()
    assert '"status":"failed"' not in output
    assert '"error":{' not in output


def typed(commands: str, folder: Path, variables: dict[str, str]) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _STRICT_CURL + commands],
        cwd=folder,
        env={**os.environ, "COG_TRITON_CACHE": str(folder / "cache"), **variables, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
