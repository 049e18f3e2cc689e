"""Connections to Cog's server send what they have at once."""

from __future__ import annotations

import socket
from pathlib import Path

from runner.client_sockets import set_options
from runner.cog_http import find_listeners
from tests.runner.servers import HOST, free_ports


def _is_no_delay(server: socket.socket) -> bool:
    with socket.create_connection(server.getsockname()), server.accept()[0] as accepted:
        return bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_to_the_port_send_at_once() -> None:
    with socket.create_server((HOST, 0)) as server, socket.create_server((HOST, 0)) as other:
        assert not _is_no_delay(server)
        ((_, listener),) = find_listeners(server.getsockname()[1])
        with listener:
            set_options(listener)
        assert _is_no_delay(server)
        assert not _is_no_delay(other)


def test_a_port_that_nobody_listens_on_is_not_found_and_no_file_is_left_open() -> None:
    (port,) = free_ports(1)
    before = _open_files()
    assert not find_listeners(port)
    assert _open_files() == before


def _open_files() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}
