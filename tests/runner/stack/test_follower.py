"""A runner that holds ranks only, beside the engine server of a head; vLLM is the stand-in, without ranks."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.machine.processes import session_members
from errors.coded_error import CodedError
from perf.peers.engine import PLATFORM, built_engine
from runner.cog_server.launch import CogServer
from runner.engines.protocol.messages import Sampling, Submit
from runner.settings.ports import free_ports
from runner.settings.settings import load_settings
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.vllm_engines import make_python
from tests.runner.servers import HOST, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.servers]


class Group:
    """The settings of an engine's nodes on this machine."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder = folder
        arguments = {"max_num_seqs": 8, "max_model_len": 1024}
        self.engine = built_engine(folder, Path("examples/tiny/model"), arguments)
        self.python = make_python(folder / "python", sys.executable)
        self.port, self.address_port = free_ports(2)
        path = folder / "config.yaml"
        path.write_text(json.dumps({"server": {"tensorrt_llm": {"args": config}}}))
        self.variables = {
            "PATH": f"{PLATFORM / 'bin'}:{os.environ['PATH']}",
            "NODES": "2",
            "HEAD_ADDRESS": f"{HOST}:{self.address_port}",
            "COG_TRITON_CONFIG": str(path),
            "COG_TRITON_CACHE": str(folder / "cache"),
            "COG_TRITON_ENGINE_PYTHON": self.python,
            "ENGINE_DIR": str(self.engine),
            "COG_WEIGHTS": "",
        }

    def head(self) -> EngineServerUnderTest:
        options = load_settings({"HOME": str(self.folder), **self.variables}).node_options(60.0)
        return EngineServerUnderTest("vllm", self.engine, options, self.folder, python=self.python)

    def follower(self, rank: str = "1", **variables: str) -> CogServer:
        extra = {**self.variables, "NODE_RANK": rank, **variables}
        log_path = self.folder / "follower.log"
        return CogServer("runner", host=HOST, port=self.port, log_path=log_path, extra=extra)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


@pytest.fixture
def start(group: Group) -> Iterator[Callable[..., Any]]:
    started: list[Any] = []

    def begin(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        started.append(make(*arguments, **options))
        return started[-1]

    yield begin
    for each in started:
        each.stop()


def status(server: CogServer) -> str | None:
    return server.health().get("status")


def engine_processes(server: CogServer) -> list[int]:
    return [pid for pid in session_members(server.pid) if pid != server.pid]


def test_both_nodes_serve_end_and_come_back_together(group: Group, start: Callable[..., Any]) -> None:
    follower = start(group.follower)
    wait_until(lambda: status(follower) == "STARTING", 60)
    head = start(group.head)
    with closing(Listening(head)) as client:
        assert client.answer(Submit(1, [7], 3, Sampling(top_k=1))) == ([8, 9, 10], "length")
        follower.wait_ready(60)
        client.send(Submit(2, [7], 1000, Sampling(top_k=1)))
        client.wait_for_tokens(2)
        for pid in engine_processes(follower):
            os.kill(pid, signal.SIGKILL)
        assert client.wait_for_end(2).startswith("E2205 VllmEngineDied: vLLM's engine core died (node 1 (127")
    assert head.exit_code() == 70
    wait_until(lambda: status(follower) == "STARTING")
    head.start()
    with closing(Listening(head)) as client:
        assert client.answer(Submit(1, [7], 1, Sampling(top_k=1))) == ([8], "length")
        follower.wait_ready(60)
        before = engine_processes(follower)
        head.kill()
    wait_until(lambda: not set(before) & set(engine_processes(follower)))
    wait_until(lambda: status(follower) != "READY")


def test_after_sigterm_it_waits_for_the_head(group: Group, start: Callable[..., Any]) -> None:
    follower, head = start(group.follower, STOP_GRACE_PERIOD="300"), start(group.head)
    follower.wait_ready(120)
    os.kill(follower.pid, signal.SIGTERM)
    with closing(Listening(head)) as client:
        client.send(Submit(1, [7], 900, Sampling(top_k=1)))
        assert client.wait_for_end(1) == "length"
    assert follower.is_running()
    head.stop()
    wait_until(lambda: not session_members(follower.pid))
    assert follower.exit_code() == 0


@pytest.mark.parametrize(
    ("rank", "config", "told", "code"),
    [
        ("1", {"engine_start_timeout_s": "12"}, "E2208", 1),
        ("2", {}, "E1006", 2),
    ],
)
def test_why_it_does_not_start_is_told(
    tmp_path: Path, rank: str, config: dict[str, str], told: str, code: int
) -> None:
    follower = Group(tmp_path, **config).follower(rank)
    try:
        with pytest.raises(CodedError) as raised:
            follower.wait_ready(120)
        assert raised.value.code == told
        assert follower.exit_code() == code
    finally:
        follower.stop()
