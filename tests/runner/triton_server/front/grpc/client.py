"""A client of the front's gRPC API by h2, on a connection that is fed by hand."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, ResponseReceived, TrailersReceived
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes
from hyperframe.frame import Frame

from errors.triton_front import TooManyInferences
from runner.settings.api_keys import APIKeys
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.grpc.server import GRPCServer
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.starts import Starts
from runner.triton_server.grpc_wire import SERVICE
from tests.fuzz.front_connections import UnreachableTriton
from tests.runner.triton_server.transport import Transport

OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 0, 3, 8, 12, 13, 16
MAX_BODY_BYTES = 1 << 20
EMPTY = b"\0\0\0\0\0"


class ConnectedTriton:
    """A stand-in: Triton is connected, and gets nothing here."""

    is_connected = True
    running = 0
    max_requests = 100
    is_managed = False

    def __init__(self) -> None:
        self.reads = Starts(32)

    def check_room(self, client: object) -> None:
        if self.running >= self.max_requests:
            raise TooManyInferences(running=self.running)


class Client:
    """``is_ready``: of the engine. If it is not, the front answers ServerReady without Triton."""

    def __init__(
        self, keys: tuple[str, ...] = (), *, is_ready: bool = False, inferences: Inferences | None = None
    ) -> None:
        self.inferences: Any = inferences or ConnectedTriton()
        self.inferences.budget = self.budget = Budget(4 << 20)
        self.server = GRPCServer(
            self.inferences, UnreachableTriton(), APIKeys(keys), lambda: is_ready, MAX_BODY_BYTES
        )
        self.connection = self.server.connection()
        self.transport = Transport(self.connection)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self._read = 0

    async def open(self, window_bytes: int | None = None, *, is_one_second: bool = False) -> Client:
        """Send the preface. ``is_one_second``: for the server all happens within one second."""
        self.h2.initiate_connection()
        if window_bytes is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        await self.flush()
        if is_one_second:
            self.connection._since_s = math.inf
        return self

    async def flush(self) -> None:
        await self.feed(self.h2.data_to_send())

    async def feed(self, data: bytes) -> None:
        self.transport.feed(data)
        await self.settle()
        sent = bytes(self.transport.sent[self._read :])
        self._read += len(sent)
        self.events += self.h2.receive_data(sent)

    async def settle(self) -> None:
        """Until the server has read all, in turns, and has sent what it writes for it."""
        while not (self.transport.is_reading_now or self.transport.is_closing()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)

    async def feed_frames(self, frames: list[Frame]) -> None:
        await self.feed(b"".join(each.serialize() for each in frames))

    def begin(self, method: str, *more: tuple[str, str]) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)]
        self.h2.send_headers(stream_id, [*head, ("te", "trailers"), *more])
        return stream_id

    def ask(self, method: str) -> int:
        """Begin a call and send its whole message, an empty one. Return its stream."""
        stream_id = self.begin(method)
        self.h2.send_data(stream_id, EMPTY, end_stream=True)
        return stream_id

    async def call(self, method: str, data: bytes, *more: tuple[str, str]) -> dict[str, str]:
        """Return the trailers of a call."""
        stream_id = self.begin(method, *more)
        with suppress(StreamClosedError):  # The server has refused it.
            for at in range(0, len(data), 1 << 14):
                self.h2.send_data(
                    stream_id, data[at : at + (1 << 14)], end_stream=at + (1 << 14) >= len(data)
                )
                await self.flush()
            if not data:
                self.h2.end_stream(stream_id)
                await self.flush()
        return self.trailers(stream_id)

    def trailers(self, stream_id: int) -> dict[str, str]:
        ends = [
            each
            for each in self.events
            if isinstance(each, ResponseReceived | TrailersReceived) and each.stream_id == stream_id
        ]
        return dict(ends[-1].headers) if ends else {}

    @property
    def is_closed(self) -> bool:
        return self.transport.is_closing() or any(
            isinstance(each, ConnectionTerminated) for each in self.events
        )
