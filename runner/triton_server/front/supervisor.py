"""The front as a supervised child, on ports that the runner itself holds open while it is restarted."""

import socket
from collections.abc import Callable
from pathlib import Path

from errors.coded_error import CodedError
from errors.triton_front import TritonFrontFailed
from runner.settings.ports import Listener, TritonPorts, check_ports_free, local_url
from runner.settings.settings import Settings
from runner.supervision.child import Log
from runner.supervision.client_sockets import set_options
from runner.supervision.failures import ProcessFailure
from runner.supervision.health import answers_ok
from runner.supervision.supervised import SupervisedProcess
from runner.triton_server.front.start import HEALTH_PATH, FrontStart

_BACKLOG = 2048
_MIN_START_TIMEOUT_S = 60.0


class TritonFront(SupervisedProcess):
    """The front, from ``begin`` to ``stop``."""

    part = "triton front"
    log_prefix = "front"
    stop_grace_s = 2.0
    is_exposed = True

    def __init__(
        self,
        settings: Settings,
        triton: TritonPorts,
        engine_kind: str,
        engine_socket: Path | None,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """Initialize. ``engine_socket``: None with NVIDIA's C++ backend."""
        start_timeout_s = max(_MIN_START_TIMEOUT_S, settings.triton_start_timeout_s)
        super().__init__("the front of Triton", log, on_failure, start_timeout_s)
        self._settings = settings
        self._triton = triton
        self._engine_kind = engine_kind
        self._engine_socket = engine_socket
        self._sockets: list[socket.socket] = []

    def begin(self) -> None:
        """Listen, and start the child. Raises E1007, E1006."""
        settings = self._settings
        listeners = triton_listeners(settings)
        check_ports_free(*listeners)
        for each in listeners:
            listener = socket.create_server((each.host, each.port), backlog=_BACKLOG)
            set_options(listener)
            self._sockets.append(listener)
        super().begin()

    async def launch(self) -> None:
        http, grpc, metrics = (each.fileno() for each in self._sockets)
        start = FrontStart(
            settings=self._settings,
            http_fd=http,
            grpc_fd=grpc,
            metrics_fd=metrics,
            triton=self._triton,
            engine_socket=self._engine_socket,
            engine_kind=self._engine_kind,
        )
        document = start.model_dump_json().encode()
        await self.launch_module("runner.triton_server.front", document, [http, grpc, metrics])

    async def is_ready(self) -> bool:
        url = local_url(self._settings.triton_host, self._settings.triton_http_port)
        return await answers_ok(f"{url}{HEALTH_PATH}")

    def start_error(self, reason: str) -> CodedError:
        return TritonFrontFailed(reason=reason, log_tail=self.child.last_lines())

    async def stop(self) -> None:
        """Stop to listen, and end the child."""
        for each in self._sockets:
            each.close()
        await super().stop()


def triton_listeners(settings: Settings) -> tuple[Listener, Listener, Listener]:
    host = settings.triton_host
    return (
        Listener(host, settings.triton_http_port, "Triton's HTTP", "TRITON_HTTP_PORT"),
        Listener(host, settings.triton_grpc_port, "Triton's gRPC", "TRITON_GRPC_PORT"),
        Listener(host, settings.triton_metrics_port, "Triton's metrics", "TRITON_METRICS_PORT"),
    )
