"""Cog's server in the builder's image: its variables, and two of them in containers that share a network."""

import re
import runpy
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from builder.cog_server import main
from engine.machine.root import SOURCE_ROOT
from runner.cog_server.launch import environment
from runner.settings.ports import free_ports
from tests.runner.servers import HOST, wait_until

_TURN = "@cog-triton-coglet-1-0"
_READY_OR_NOT = re.compile("Server ready|failed to create transport.*")
NAMES = ("PORT", "COG_MAX_CONCURRENCY", "TOKIO_WORKER_THREADS")


@pytest.mark.parametrize("value", ["abc", "", "0", "5000.0", "70000", "٣", "9" * 5000])
@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_variable_is_e1006_before_anything_starts(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(SystemExit) as ended:
        main()
    line = capsys.readouterr().err
    assert line.startswith(f"E1006 InvalidSetting: {name} must be a whole number from 1 to ")
    assert (ended.value.code, line.count("\n")) == (2, 1)
    assert len(line) < 1000


def test_cogs_server_runs_with_valid_variables_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("builder.cog_server.await_turn", lambda: None)
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: started.append(name))
    for value in ("1", "1024", None):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        main()
    assert started == ["cog.server.http"] * 3


@pytest.mark.servers
def test_servers_of_the_same_process_id_start_in_one_network(tmp_path: Path) -> None:
    """The process id, here 1, is in the names of coglet's sockets. ``docker run --network host`` does it."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, "true"], capture_output=True).returncode
    ):
        pytest.skip("this user may make no namespaces of process ids")
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    with ExitStack() as servers, socket.socket(socket.AF_UNIX) as another:
        wait_until(partial(_binds, another, "\0coglet-1-0"))
        another.listen()
        for log, port in zip(logs, free_ports(len(logs)), strict=True):
            server = subprocess.Popen(
                [*namespace, sys.executable, "-m", "builder.cog_server", "--host", HOST],
                cwd=SOURCE_ROOT / "builder",
                env=environment("builder", port, {}),
                stdout=servers.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            servers.callback(server.wait)
            servers.callback(server.kill)
        wait_until(lambda: _TURN in Path("/proc/net/unix").read_text())
        another.close()
        for log in logs:
            wait_until(lambda log=log: _READY_OR_NOT.search(log.read_text()))  # type: ignore[misc]
            assert "Server ready" in log.read_text()


def _binds(listener: socket.socket, name: str) -> bool:
    with suppress(OSError):  # This test may run in another checkout.
        listener.bind(name)
        return True
    return False
