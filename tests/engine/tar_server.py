"""A real HTTP server on loopback that holds one file and can be told to misbehave."""

from __future__ import annotations

import mmap
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Request:
    number: int
    """Counts from 0."""
    path: str
    first: int | None
    """First byte asked for; None without a range."""
    headers: dict[str, str]


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


class TarServer:
    """``fault`` decides for each request; the rest says what the server is like when nothing is wrong."""

    def __init__(self, content: bytes | mmap.mmap = b"", tls: ssl.SSLContext | None = None) -> None:
        self.content = content
        self.etag: str | None = '"v1"'
        self.last_modified: str | None = None
        self.has_ranges = True
        self.honours_if_range = True
        self.tells_size = True
        self.fault: Callable[[Request], Fault | None] = lambda request: None
        self.requests: list[Request] = []
        self.sent_bytes = 0
        self._guard = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._origin = f"http://127.0.0.1:{self._server.server_port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._origin = f"https://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._origin}/engine.tar"

    def __enter__(self) -> TarServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def record(self, path: str, headers: dict[str, str]) -> Request:
        match = re.fullmatch(r"bytes=(\d+)-\d+", headers.get("range", ""))
        with self._guard:
            request = Request(len(self.requests), path, int(match[1]) if match else None, headers)
            self.requests.append(request)
        return request

    def count_sent(self, size_bytes: int) -> None:
        with self._guard:
            self.sent_bytes += size_bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are what is tested here."""


def _handler(server: TarServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

        def do_GET(self) -> None:
            request = server.record(self.path, {key.lower(): value for key, value in self.headers.items()})
            fault = server.fault(request) or Fault()
            if fault.status is not None:
                self._answer(fault.status, b"", fault)
                return
            content = server.content if fault.content is None else fault.content
            etag = fault.etag or server.etag
            if not server.has_ranges or request.first is None or not self._is_current(request, etag):
                self._answer(200, content, fault, etag)
            elif request.first >= len(content):
                self._answer(416, b"", fault, etag)
            else:
                last = int(self.headers["Range"].rpartition("-")[2])
                part = content[request.first : last + 1]
                span = f"bytes {request.first}-{request.first + len(part) - 1}/{len(content)}"
                self._answer(206, part, fault, etag, {"Content-Range": span})

        def _is_current(self, request: Request, etag: str | None) -> bool:
            if_range = request.headers.get("if-range")
            strong = None if etag is None or etag.startswith("W/") else etag
            return not server.honours_if_range or if_range in (None, strong, server.last_modified)

        def _answer(
            self,
            status: int,
            body: bytes | mmap.mmap,
            fault: Fault,
            etag: str | None = None,
            headers: dict[str, str] | None = None,
        ) -> None:
            self.send_response(status)
            told = {"ETag": etag, "Last-Modified": server.last_modified, **(headers or {}), **fault.headers}
            for name, value in told.items():
                if value is not None:
                    self.send_header(name, value)
            if server.tells_size:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.close_connection = True
            self.end_headers()
            sent = body if fault.body_bytes is None else body[: fault.body_bytes]
            server.count_sent(len(sent))
            self.wfile.write(sent)
            if fault.hold is not None:
                fault.hold.wait(240)
            if fault.body_bytes is not None:
                self.close_connection = True
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return Handler
