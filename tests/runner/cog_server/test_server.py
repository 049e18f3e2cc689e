"""Connections to Cog's server come in bursts, and send what they have at once."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from runner.cog_server.__main__ import warn_of_concurrency
from runner.cog_server.shutdown import find_listener
from runner.observability.logs import log_in
from runner.settings.cog_settings import CogSettings
from runner.supervision.client_sockets import set_options
from tests.runner.servers import HOST, CogUnderTest, free_ports, wait_until


def _is_no_delay(server: socket.socket) -> bool:
    with socket.create_connection(server.getsockname()), server.accept()[0] as accepted:
        return bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_to_the_port_send_at_once() -> None:
    with socket.create_server((HOST, 0)) as server, socket.create_server((HOST, 0)) as other:
        assert not _is_no_delay(server)
        found = find_listener(server.getsockname()[1])
        assert found is not None
        listener, is_listening = found
        with listener:
            set_options(listener)
        assert _is_no_delay(server)
        assert not _is_no_delay(other)
        assert is_listening()
    assert not is_listening()


def test_a_port_that_nobody_listens_on_is_not_found_and_no_socket_is_left_open() -> None:
    (port,) = free_ports(1)
    before = _open_sockets()
    assert not find_listener(port)
    # Other threads of this process open some too, for a moment.
    wait_until(lambda: _open_sockets() <= before)


@pytest.mark.servers
@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < 1000, reason="Linux lets no more wait here"
)
def test_a_burst_of_clients_is_connected_before_the_server_gets_to_it(cog: CogUnderTest) -> None:
    """One that has to wait for a place in the queue tries again after a second, and then every few."""
    place = (HOST, cog.port)
    os.kill(cog.server.pid, signal.SIGSTOP)
    try:
        with ExitStack() as connections:
            for _ in range(600):
                connections.enter_context(socket.create_connection(place, timeout=0.9))
    finally:
        os.kill(cog.server.pid, signal.SIGCONT)
    assert cog.predict(prompt="hi", max_tokens=2)["status"] == "succeeded"


@pytest.mark.servers
def test_a_wrong_variable_of_cog_ends_the_server_before_it_starts() -> None:
    command = [sys.executable, "-m", "runner.cog_server"]
    environment = {**os.environ, "PORT": "abc"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("E1006 InvalidSetting: PORT must be ")


def _open_sockets() -> set[str]:
    numbers = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The folder's own, say.
            if str(file.readlink()).startswith("socket:"):
                numbers.add(file.name)
    return numbers


def test_a_concurrency_that_cog_cannot_stream_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_concurrency(CogSettings(max_concurrency=511), log_in(None))
    assert capsys.readouterr().err == ""
    warn_of_concurrency(CogSettings(max_concurrency=512), log_in(None))
    text = capsys.readouterr().err
    assert text.startswith("warning: COG_MAX_CONCURRENCY is 512, but Cog streams 511 predictions at once")
    warn_of_concurrency(CogSettings(max_concurrency=512), log_in("json"))
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], f"warning: {line['message']}\n") == ("warning", text)
