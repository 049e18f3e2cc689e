"""Client of Triton's gRPC API: one connection, many calls, results by callbacks."""

import asyncio

from errors.triton import TritonUnavailable
from runner.settings.ports import LOOPBACK
from runner.supervision.child import within
from runner.supervision.client_sockets import set_options
from runner.triton_server.grpc_client.call import OnEnd, OnMessage, TritonCall
from runner.triton_server.grpc_client.connection import TritonConnection
from runner.triton_server.grpc_wire import OK, SERVICE, UNAVAILABLE, Headers

_CONNECT_TIMEOUT_S = 5.0


class Triton:
    """A client that connects when there is something to send, and again after Triton was restarted."""

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        self._port = port
        self._host = host
        self._connection: TritonConnection | None = None
        self._connecting = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def connect(self) -> None:
        """Connect, unless it is connected. Raises TritonUnavailable."""
        async with self._connecting:
            if self.is_connected:
                return
            loop = asyncio.get_running_loop()
            authority = f"{self._host}:{self._port}"
            try:
                transport, self._connection = await within(
                    loop.create_connection(lambda: TritonConnection(authority), self._host, self._port),
                    _CONNECT_TIMEOUT_S,
                )
            except (OSError, asyncio.TimeoutError) as exc:
                raise TritonUnavailable(reason=str(exc) or "no connection in time") from exc
            if self._host != LOOPBACK:  # A machine that vanishes closes no connection.
                set_options(transport.get_extra_info("socket"))

    def begin(self, method: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> TritonCall:
        """Begin a call of a method of Triton's service. Raises TritonUnavailable; see ``connect``."""
        return self.begin_path(f"{SERVICE}/{method}", metadata, on_message, on_end)

    def begin_path(self, path: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> TritonCall:
        if self._connection is None or not self._connection.is_open:
            raise TritonUnavailable(reason="there is no connection to it")
        return self._connection.begin(path, metadata, on_message, on_end)

    async def ask(self, method: str, message: bytes) -> bytes:
        """Make a call with one message and one answer. Raises TritonUnavailable, RefusedByTriton."""
        await self.connect()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        received: list[bytes] = []

        def on_end(status: int, text: str) -> None:
            if answer.done():
                return
            if status == OK and received:
                answer.set_result(received[0])
            elif status == UNAVAILABLE:
                answer.set_exception(TritonUnavailable(reason="its connection was lost"))
            else:
                answer.set_exception(RefusedByTriton(status, text))

        call = self.begin(method, [], received.append, on_end)
        call.send(message, is_last=True)
        try:
            return await answer
        finally:
            call.stop_reading()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class RefusedByTriton(Exception):
    """Triton's status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
