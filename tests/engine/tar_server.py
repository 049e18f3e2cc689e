"""A real HTTP server on loopback that holds one file and can be told to misbehave."""

import mmap
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.scripted_server import Asked, ScriptedServer, Write, head


@dataclass(frozen=True)
class Fault:
    status: int | None = None
    """Answer with this status and nothing else."""
    headers: dict[str, str] = field(default_factory=dict)
    body_bytes: int | None = None
    """Send only so much of the body, then close the connection."""
    hold: threading.Event | None = None
    """Wait for this before closing the connection."""
    reset: bool = False
    """Close it by a reset."""
    content: bytes | None = None
    """Serve this from now on in this answer."""
    etag: str | None = None


class TarServer(ScriptedServer):
    """``fault`` decides for each request; the rest says what the server is like when nothing is wrong."""

    def __init__(self, content: bytes | mmap.mmap = b"", tls: ssl.SSLContext | None = None) -> None:
        self.content = content
        self.etag: str | None = '"v1"'
        self.has_ranges = True
        self.honours_if_range = True
        self.tells_size = True
        self.fault: Callable[[Asked], Fault | None] = lambda asked: None
        self.sent_bytes = 0
        self._sending = threading.Lock()
        super().__init__(self._answer, tls)
        self.url += "/engine.tar"

    def _answer(self, asked: Asked, write: Write) -> bool:
        fault = self.fault(asked) or Fault()
        status, body, headers = self._response(asked, fault)
        length = len(body) if self.tells_size else None
        write(head(status, {**headers, **fault.headers, "Content-Length": length}))
        sent = body if fault.body_bytes is None else body[: fault.body_bytes]
        with self._sending:
            self.sent_bytes += len(sent)
        write(sent)
        if fault.hold is not None:
            fault.hold.wait(240)
        if fault.reset:
            asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(asked.connection.detach())  # At once: the server would send an orderly end before it.
        return self.tells_size and fault.body_bytes is None

    def _response(self, asked: Asked, fault: Fault) -> tuple[int, bytes | mmap.mmap, dict[str, str | None]]:
        if fault.status is not None:
            return fault.status, b"", {}
        content = self.content if fault.content is None else fault.content
        headers = {"ETag": fault.etag or self.etag}
        if not self.has_ranges or asked.first is None or not self._is_current(asked, headers["ETag"]):
            return 200, content, headers
        if asked.first >= len(content):
            return 416, b"", headers
        part = content[asked.first : int(asked.headers["range"].rpartition("-")[2]) + 1]
        span = f"bytes {asked.first}-{asked.first + len(part) - 1}/{len(content)}"
        return 206, part, {**headers, "Content-Range": span}

    def _is_current(self, asked: Asked, etag: str | None) -> bool:
        strong = None if etag is None or etag.startswith("W/") else etag
        return not self.honours_if_range or asked.headers.get("if-range") in (None, strong)
