"""Ports: whether they are free, and the URLs of what listens there."""

from __future__ import annotations

import errno
import socket

from pydantic import BaseModel, ConfigDict

from errors.settings import InvalidSetting, PortInUse

LOOPBACK = "127.0.0.1"


def local_url(host: str, port: int) -> str:
    """The URL of what listens there, for this machine."""
    return f"http://{LOOPBACK if host in ('0.0.0.0', '') else host}:{port}"  # noqa: S104


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
    probes = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class TritonPorts(BaseModel):
    """Ports of loopback that Triton itself listens on; clients use those of the front."""

    model_config = ConfigDict(frozen=True)

    http: int
    grpc: int
    metrics: int

    @classmethod
    def free(cls) -> TritonPorts:
        http, grpc, metrics = free_ports(3)
        return cls(http=http, grpc=grpc, metrics=metrics)

    @property
    def http_url(self) -> str:
        return local_url(LOOPBACK, self.http)

    @property
    def metrics_url(self) -> str:
        return f"{local_url(LOOPBACK, self.metrics)}/metrics"
