"""A stand-in for a socket: what a connection of the front writes stays in memory."""

import asyncio
import gc
import weakref
from typing import Any


class Transport(asyncio.Transport):
    """Connected at once. ``feed`` brings what the other side sends."""

    def __init__(
        self, protocol: asyncio.BufferedProtocol | asyncio.Protocol, *, is_read: bool = True
    ) -> None:
        super().__init__()
        self._protocol: asyncio.BufferedProtocol | asyncio.Protocol | None = protocol
        self.max_size = 1 << 14
        """Bytes of one read, set by the protocol."""
        self._is_closing = False
        self.is_lost = False
        self.sent = bytearray()
        self.has_ended = False
        """It sends no more."""
        self.is_read = is_read
        """The other side reads what is sent."""
        self.is_reading_now = True
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        while data and not self._is_closing:
            data = self.feed_once(data)

    def feed_once(self, data: bytes) -> bytes:
        """Bring what one read takes. Return the rest."""
        assert self._protocol is not None
        if isinstance(self._protocol, asyncio.Protocol):
            read, data = data[: self.max_size], data[self.max_size :]
            self._protocol.data_received(read)
            return data
        buffer = memoryview(self._protocol.get_buffer(-1))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        self._protocol.buffer_updated(size)
        return data[size:]

    def lose(self) -> None:
        self._is_closing = self.is_lost = True
        protocol, self._protocol = self._protocol, None
        protocol.connection_lost(None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_lost:
            return
        assert not self.has_ended
        self.sent += data

    def write_eof(self) -> None:
        self.has_ended = True

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_read else len(self.sent)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close it: it is lost once the other side has read everything."""
        self.has_ended = self._is_closing = True
        if self.is_read:
            self.abort()

    def abort(self) -> None:
        self.has_ended = True
        if not self.is_lost:
            self.lose()

    def is_reading(self) -> bool:
        return self.is_reading_now

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True


async def check_freed_when_lost(client: Any) -> None:
    """Check without a garbage collection, before which thousands of connections may be lost."""
    lost = weakref.ref(client.connection)
    client.transport.lose()
    for _ in range(20):
        await asyncio.sleep(0)
    gc.disable()
    try:
        del client.connection
        assert lost() is None
    finally:
        gc.enable()
