"""The ports that Triton listens on, and whether they are free."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from errors.settings import InvalidSetting, PortInUse


@dataclass(frozen=True)
class TritonPorts:
    """Where Triton listens: ``host`` for all three."""

    host: str
    http: int
    grpc: int
    metrics: int

    def check_free(self) -> None:
        """Raise E1007 for the first port that is taken, by another program or by another of these."""
        ours: set[int] = set()
        for port, purpose, variable in (
            (self.http, "Triton's HTTP", "TRITON_HTTP_PORT"),
            (self.grpc, "Triton's gRPC", "TRITON_GRPC_PORT"),
            (self.metrics, "Triton's metrics", "TRITON_METRICS_PORT"),
        ):
            if port in ours:
                raise PortInUse(port=port, purpose=purpose, variable=variable)
            check_port_free(self.host, port, purpose, variable)
            ours.add(port)

    @property
    def http_url(self) -> str:
        return local_url(self.host, self.http)

    @property
    def metrics_url(self) -> str:
        return f"{local_url(self.host, self.metrics)}/metrics"


def local_url(host: str, port: int) -> str:
    """The URL of what listens there, for this machine."""
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{port}"  # noqa: S104


def check_port_free(host: str, port: int, purpose: str, variable: str) -> None:
    """Raise E1007 if ``port`` is taken, E1006 if it can't be listened on. ``variable`` sets it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise PortInUse(port=port, purpose=purpose, variable=variable) from exc
            expected = f"a port that can be listened on at {host} ({exc.strerror})"
            raise InvalidSetting(name=variable, expected=expected, value=port) from exc


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on, for now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
