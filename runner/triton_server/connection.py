"""HTTP/1.1 to Triton alone: POSTs over connections that are kept, answers read as they arrive.

Not aiohttp: behind NVIDIA's C++ backend each token of each stream is an event here (docs/decisions.md). It
has no TLS, redirects, cookies, compression or trailers, which Triton on loopback does not use.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

from errors.requests import ClientStalled

_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_STATUS = re.compile(rb"http/1\.[01] (\d{3})")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})\r\n")
_CHUNKED = b"\r\ntransfer-encoding: chunked"
_CONNECT_TIMEOUT_S = 5.0
_LONGEST_CHUNK_LINE = 32
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8}) *(?:;.*)?", re.DOTALL)
_MOST_HEAD_BYTES = 1 << 16
_MOST_CHUNK_BYTES = 1 << 26
"""Of one chunk, which holds an event or a few: what has not arrived whole is kept until it has."""
_MOST_UNREAD_BYTES = 1 << 18
"""Of an answer: beyond it nothing more is read from Triton until the reader catches up."""
_STALL_TIMEOUT_S = 60.0
"""How long a reader may leave that much unread."""


class Connection(asyncio.Protocol):
    """One POST at a time: ``post``, then ``read`` until it gives nothing; then the next, if ``is_free``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._data = bytearray()
        """What has arrived of the answer and is not read yet."""
        self._waiter: asyncio.Future[None] | None = None
        self._rest_bytes: int | None = 0
        """Of the body, what is still to come; None for a chunked one."""
        self._is_chunked = False
        self._timeout_s = 0.0
        self._stall: asyncio.TimerHandle | None = None
        """Runs while reading from Triton is paused."""
        self.is_stalled = False
        self.is_free = True
        self.is_closed = False

    async def post(self, path: str, body: bytes, timeout_s: float, headers: str = "") -> int:
        """Send a request; returns the status. ``headers``: whole lines. Raises asyncio.TimeoutError after
        ``timeout_s`` of silence, and ConnectionError."""
        self.is_free = False
        self._timeout_s = timeout_s
        head = f"POST {path} HTTP/1.1\r\nHost: triton\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._transport.write(head.encode() + body)
        while (end := self._data.find(_HEAD_END)) < 0:
            if len(self._data) > _MOST_HEAD_BYTES:
                raise ConnectionError("its answer's head has no end")
            await self._more()
        status = self._start_body(bytes(self._data[: end + len(_LINE_END)]).lower())
        del self._data[: end + len(_HEAD_END)]
        return status

    async def read(self) -> bytes:
        """All of the body that has arrived, waiting for the first; nothing at its end. Raises as ``post``."""
        while not self.is_free:
            if self.is_stalled:
                raise ClientStalled(waiting_bytes=len(self._data), timeout_s=_STALL_TIMEOUT_S)
            if self._stall is not None:
                self._resume(self._stall)
            if data := self._take_chunks() if self._is_chunked else self._take_plain():
                return data
            if not self.is_free:
                await self._more()
        return b""

    def close(self) -> None:
        self._transport.close()

    def _start_body(self, head: bytes) -> int:
        """Read the head, in lower case; returns the status."""
        status, length = _STATUS.match(head), _CONTENT_LENGTH.search(head)
        self._is_chunked = _CHUNKED in head
        if status is None or (length is None and not self._is_chunked):
            raise ConnectionError("its answer is not HTTP/1.1 as Triton speaks it")
        self._rest_bytes = int(length[1]) if length and not self._is_chunked else None
        self.is_free = self._rest_bytes == 0
        return int(status[1])

    def _take_plain(self) -> bytes:
        assert self._rest_bytes is not None
        data = bytes(self._data)
        self._data.clear()
        self._rest_bytes -= len(data)
        self.is_free = self._rest_bytes <= 0
        return data

    def _take_chunks(self) -> bytes:
        """The content of the chunks that have arrived whole."""
        data, parts, start = self._data, [], 0
        while (line_end := data.find(_LINE_END, start)) >= 0:
            size_bytes = _chunk_size(data[start:line_end])
            end = line_end + len(_LINE_END) + size_bytes
            if len(data) < end + len(_LINE_END):
                break
            parts.append(data[line_end + len(_LINE_END) : end])
            start = end + len(_LINE_END)
            if not size_bytes:
                self.is_free = True
                break
        del data[:start]
        if not parts and not self.is_free and len(data) > _MOST_CHUNK_BYTES:
            raise ConnectionError("its answer is not HTTP: a chunk has no end")
        return b"".join(parts)

    async def _more(self) -> None:
        """Wait until something arrives."""
        if self.is_closed:
            raise ConnectionError("the connection was closed")
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(self._timeout_s, self._wake, asyncio.TimeoutError())
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self, error: BaseException | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    def _resume(self, stall: asyncio.TimerHandle) -> None:
        stall.cancel()
        self._stall = None
        self._transport.resume_reading()

    def _give_up(self) -> None:
        """The reader does not read: close, by which Triton frees the request."""
        self.is_stalled = True
        self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > _MOST_UNREAD_BYTES and self._waiter is None and self._stall is None:
            self._transport.pause_reading()
            self._stall = self._loop.call_later(_STALL_TIMEOUT_S, self._give_up)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._stall is not None:
            self._stall.cancel()
        self._wake(ConnectionError(str(error) if error else "the connection was closed"))


def _chunk_size(line: bytearray) -> int:
    """NOTE: stricter than ``int``: with a negative length the reader would never end."""
    size = _CHUNK_SIZE.fullmatch(line)
    if size is None or int(size[1], 16) > _MOST_CHUNK_BYTES:
        shown = bytes(line[:_LONGEST_CHUNK_LINE])
        raise ConnectionError(f"its answer is not HTTP: {shown!r} is no length of a chunk")
    return int(size[1], 16)


class ConnectionPool:
    """Connections to one server, used again while they last."""

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        self._host, self._port = url.hostname or "", url.port or 80
        self._free: list[Connection] = []
        self._all: set[Connection] = set()

    async def take(self) -> Connection:
        """A free connection. Raises OSError."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed:
                return connection
            self._all.discard(connection)
        opening = asyncio.get_running_loop().create_connection(Connection, self._host, self._port)
        try:
            _, connection = await asyncio.wait_for(opening, _CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError as exc:
            raise ConnectionError(f"no connection within {_CONNECT_TIMEOUT_S:g} s") from exc
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep it, or close it if its answer was not read to the end, by which Triton cancels the request."""
        if connection.is_free and not connection.is_closed:
            self._free.append(connection)
            return
        self._all.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close all; reading from one raises ConnectionError."""
        for connection in self._all:
            connection.close()
        self._free.clear()
        self._all.clear()
