"""Ports, a check that they are free, and the URLs of what listens there."""

import errno
import itertools
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from errors.settings import InvalidSetting, PortInUse

LOOPBACK = "127.0.0.1"
_FIRST_PORT, _BLOCK = 10_000, 50


def local_url(host: str, port: int) -> str:
    """Return the URL of what listens there, for this machine."""
    return f"http://{LOOPBACK if host in ('0.0.0.0', '') else host}:{port}"  # noqa: S104


class Listener(NamedTuple):
    """Server that will listen at a port."""

    host: str
    port: int
    purpose: str
    variable: str
    """Variable that sets the port."""

    def is_free(self) -> bool:
        """Return True if the port is free. Raises E1006 if it can't be listened on."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    return False
                if exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror):
                    expected = f"an address of this machine ({exc.strerror})"
                    name = f"The host for {self.purpose}"
                    raise InvalidSetting(name=name, expected=expected, value=self.host) from exc
                expected = f"a port that can be listened on at {self.host} ({exc.strerror})"
                raise InvalidSetting(name=self.variable, expected=expected, value=self.port) from exc
        return True


def check_ports_free(*listeners: Listener) -> None:
    """Raise E1007, which names all ports that are taken, or E1006."""
    taken = [each for each in listeners if not each.is_free()]
    if taken:
        first, others = taken[0], [f"{each.port} ({each.variable})" for each in taken[1:]]
        also = f"; also in use: {', '.join(others)}" if others else ""
        raise PortInUse(port=first.port, purpose=first.purpose, variable=first.variable, also=also)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nothing listens on and that no other process gets by this function."""
    with _LOCK:
        return list(itertools.islice(_ports, count))


def _free_ports() -> Iterator[int]:
    """Yield ports of blocks that this process has for itself, by the name of a socket, until it ends.

    NOTE: any connection may take a port that the system chooses before Triton listens.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    blocks = range(_FIRST_PORT, end, _BLOCK)
    for first in random.sample(blocks, len(blocks)):
        name = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            name.bind(f"\0cog-triton-ports-{first}")
            _names.append(name)
            yield from filter(_is_free, range(first, min(first + _BLOCK, end)))
    while True:
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]
        yield port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False


_LOCK = threading.Lock()
_names: list[socket.socket] = []
_ports = _free_ports()


class TritonPorts(BaseModel):
    """Ports of loopback that Triton itself listens on; clients use those of the front."""

    model_config = ConfigDict(frozen=True)

    http: int
    grpc: int
    metrics: int

    @classmethod
    def free(cls) -> "TritonPorts":
        http, grpc, metrics = free_ports(3)
        return cls(http=http, grpc=grpc, metrics=metrics)

    @property
    def http_url(self) -> str:
        return local_url(LOOPBACK, self.http)

    @property
    def metrics_url(self) -> str:
        return f"{local_url(LOOPBACK, self.metrics)}/metrics"
