"""The engine server's process: how it loads, waits, ends, and what it leaves then."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.processes import descendants
from engine.machine.root import SOURCE_ROOT
from errors.engines import EngineCrashed, EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.messages import Submit
from tests.runner.engines.listening import Listening, make_paced_directory
from tests.runner.engines.server import brittle
from tests.runner.engines.server.conftest import StartServer
from tests.runner.servers import is_running, wait_until

pytestmark = pytest.mark.servers

PARENT = """
import os, pathlib, sys
from tests.runner.engines.engine_server import EngineServerUnderTest
folder = pathlib.Path(sys.argv[2])
server = EngineServerUnderTest(sys.argv[1], folder / "model", {}, folder, environment=os.environ)
server.connect()
print(server.process.pid, flush=True)
sys.stdin.read()
"""
"""A runner with an engine server; it prints the process id and waits."""

KINDS = pytest.mark.parametrize("kind", ["paced", "paced_child"])


@pytest.mark.parametrize("where", ["", "_child"])
@pytest.mark.parametrize(
    ("kind", "options", "error", "says"),
    [
        ("paced", {"stats_check_period_ms": "soon"}, InvalidSetting, "at least 1, but is 'soon'"),
        ("paced", {"max_batch_size": "many"}, EngineStartFailed, "engine could not start: ValueError: inv"),
        ("brittle", {"missing": "torch"}, EngineStartFailed, "has no package torch; run `make setup`"),
    ],
)
def test_why_an_engine_does_not_load_keeps_its_code(
    start_server: StartServer,
    where: str,
    kind: str,
    options: dict[str, str],
    error: type[Exception],
    says: str,
) -> None:
    server = start_server(kind + where, options)
    assert server.exit_code() == 1
    left = server.exit_reason.read()
    assert isinstance(left, error)
    assert says in str(left)


def test_what_ended_an_engine_is_logged(start_server: StartServer, tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    server = start_server("brittle", log_path=log_path, variables={"LOG_FORMAT": "json"})
    with Listening(server) as client:
        client.answer(Submit(1, [brittle.FAIL], 1, caller_id="theirs"))
        client.answer(Submit(2, [brittle.FAIL_CODED], 1))
        client.answer(Submit(3, [brittle.BREAK], 1))
        server.exit_code()
    log = log_path.read_text()
    assert "the engine failed a request: E2109" in log
    assert "theirs" in log
    assert "E1002" not in log
    assert "E2107" in log
    assert "MemoryError: out of memory" in log


@KINDS
def test_sigterm_ends_it_in_order_and_its_requests_with_it(start_server: StartServer, kind: str) -> None:
    server = start_server(kind)
    with Listening(server) as client:
        client.send(Submit(1, [5], 90_000))
        client.wait_for_tokens(1)
        processes = [server.process.pid, *descendants(server.process.pid)]
        assert len(processes) == (2 if kind == "paced_child" else 1)
        server.process.terminate()
        assert server.exit_code() == 0
        client.wait_for_close()
        assert client.ends(1) == []
    wait_until(lambda: not any(map(is_running, processes)))
    assert server.exit_reason.read() is None


@KINDS
def test_sigterm_ends_it_while_its_engine_loads(start_server: StartServer, kind: str) -> None:
    server = start_server(kind, variables={"COG_TRITON_FAULTS": "slow_start=300"})
    if kind == "paced_child":
        wait_until(lambda: descendants(server.process.pid))
    processes = descendants(server.process.pid)
    server.process.terminate()
    server.exit_code()
    wait_until(lambda: not any(map(is_running, processes)))


def test_a_terminals_interrupt_is_for_its_parent(start_server: StartServer) -> None:
    server = start_server("paced_child")
    with Listening(server) as client:
        for pid in (server.process.pid, *descendants(server.process.pid)):
            os.kill(pid, signal.SIGINT)
        assert client.answer(Submit(1, [5], 50)) == ([5] * 50, "length")


def test_a_child_that_hangs_is_killed_when_the_server_ends(start_server: StartServer) -> None:
    server = start_server("paced_child")
    Listening(server).close()
    (child,) = descendants(server.process.pid)
    os.kill(child, signal.SIGSTOP)
    server.process.terminate()
    assert server.exit_code() == 0
    wait_until(lambda: not is_running(child))


@pytest.mark.parametrize(("kind", "hangs"), [("paced", False), ("paced_child", True)])
def test_its_parents_death_ends_it_and_its_child(tmp_path: Path, kind: str, hangs: bool) -> None:
    make_paced_directory(tmp_path / "model", 1000)
    environment = {**os.environ, **brittle.with_kinds(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, str(tmp_path)],
        env=environment | {"PYTHONPATH": f"{tmp_path}:{SOURCE_ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with parent:
        server = int(parent.stdout.readline())
        processes = [server, *descendants(server)]
        assert len(processes) == (2 if kind == "paced_child" else 1)
        if hangs:
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
        parent.kill()
    wait_until(lambda: not any(map(is_running, processes)))


@pytest.mark.parametrize("kind", ["brittle", "brittle_child"])
def test_an_engine_whose_requests_hear_nothing_is_ended(start_server: StartServer, kind: str) -> None:
    server = start_server(kind, hang_timeout_s=3.0)
    with Listening(server) as client:
        # Not while it is idle, nor at its first request after that.
        client.wait_for(lambda: len(client.statistics()) > 2)
        assert client.answer(Submit(1, [brittle.ANSWER], 1)) == ([7], "end")
        client.send(Submit(2, [brittle.HOLD], 1))
        end = client.wait_for_end(2)
        client.wait_for_close()
    assert "E2107" in end
    assert "requests waited and heard nothing for 3 s" in end
    assert server.exit_code() == 70
    left = server.exit_reason.read()
    assert isinstance(left, EngineCrashed)
    assert str(left) == end


def test_an_engine_that_is_slow_is_not_ended(start_server: StartServer) -> None:
    server = start_server("paced", tokens_per_second=2, hang_timeout_s=3.0)
    with Listening(server) as client:
        assert client.answer(Submit(1, [5], 8)) == ([5] * 8, "length")


def test_without_a_limit_a_request_may_wait(start_server: StartServer) -> None:
    server = start_server("brittle", hang_timeout_s=0)
    with Listening(server) as client:
        client.send(Submit(1, [brittle.HOLD], 1))
        client.wait_for(lambda: len(client.statistics()) > 3)
        assert client.ends(1) == []
