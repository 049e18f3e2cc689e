"""An HTTP answer as it arrives: pieces of its body with the time of each, where it ends, and its events."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.http.event_stream import EventParser


class MalformedResponse(ValueError):
    """A response that is not HTTP/1.1."""


@dataclass
class Response:
    """``pieces`` are the body's, framing removed: (seconds on ``time.perf_counter``'s clock, bytes)."""

    status: int
    headers: dict[str, str]
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)


class Event(NamedTuple):
    """A server-sent event, and the time at which it was complete."""

    at_s: float
    name: str
    data: bytes


def events(response: Response) -> Iterator[Event]:
    """Yield the events of a body, also of one that was cut off: what is not whole is left out."""
    parser = EventParser()
    for at_s, piece in response.pieces:
        for event in parser.feed(piece):
            yield Event(at_s, event.name, event.data)


class ResponseReader:
    """Reader of one response: feed it what the connection receives until ``is_over``."""

    def __init__(self) -> None:
        self._unread = b""
        self._left_bytes: int | None = None
        self._is_chunked = False
        self.response: Response | None = None
        self.is_over = False

    def feed(self, now_s: float, data: bytes) -> None:
        """Take received data. Raises MalformedResponse."""
        if self._unread:
            data = self._unread + data
            self._unread = b""
        if self.response is None:
            data = self._read_head(data)
            if self.response is None:
                return
        if self._is_chunked:
            data = self._dechunk(data)
        elif self._left_bytes is not None:
            self._left_bytes -= len(data)
            self.is_over = self._left_bytes <= 0
        if data:
            self.response.pieces.append((now_s, data))

    def end(self) -> bool:
        """Take the end of the connection. Return True if that is how this answer ends."""
        self.is_over = self.response is not None and not self._is_chunked and self._left_bytes is None
        return self.is_over

    def _read_head(self, data: bytes) -> bytes:
        """Take the head, once it is whole; returns what follows it."""
        head, blank_line, rest = data.partition(b"\r\n\r\n")
        if not blank_line:
            self._unread = data
            return b""
        status_line, *lines = head.decode("latin-1").split("\r\n")
        protocol, _, status = status_line.partition(" ")
        if not protocol.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise MalformedResponse(f"the answer begins with {status_line[:60]!r}")
        if status.startswith("1"):  # An interim answer; the real one follows.
            return self._read_head(rest)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.response = Response(int(status[:3]), headers)
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if status.startswith(("204", "304")):
            self._left_bytes = 0
        elif not self._is_chunked and "content-length" in headers:
            self._left_bytes = int(headers["content-length"])
        self.is_over = self._left_bytes == 0
        return rest

    def _dechunk(self, data: bytes) -> bytes:
        """Return the payload of all chunks that are whole; the rest waits for more."""
        payload = []
        start = 0
        while (line_end := data.find(b"\r\n", start)) >= 0:
            size_bytes = _chunk_size(data[start:line_end])
            end = line_end + 2 + size_bytes
            if size_bytes == 0:
                self.is_over = data.find(b"\r\n\r\n", line_end) >= 0  # Trailers may stand before it.
                break
            if len(data) < end + 2:
                break
            payload.append(data[line_end + 2 : end])
            start = end + 2
        self._unread = data[start:]
        return b"".join(payload)


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as exc:
        raise MalformedResponse(f"a chunk begins with {line[:60]!r}") from exc
