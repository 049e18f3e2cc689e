"""An HTTP server on loopback whose answers a test writes byte by byte."""

import re
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO

from typing_extensions import Self

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """One request. ``number`` counts from 0 over all connections."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    """Values by name in lower case."""
    body: bytes
    connection: socket.socket

    @property
    def first(self) -> int | None:
        """First byte asked for; None without a range."""
        match = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(match[1]) if match else None


Write = Callable[[bytes], object]
Answer = Callable[[Asked, Write], bool]
"""Function that writes the answer with its second argument; True if the connection stays open."""


class ScriptedServer:
    """Use as ``with``; ``asked`` holds every request."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self._guard = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                while (asked := outer._read(self.rfile, self.connection)) is not None:
                    if not answer(asked, self.wfile.write):
                        break

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exc_info()[1], OSError):  # Clients that leave are part of some tests.
                    super().handle_error(request, client_address)

        self._server = Server((HOST, 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}"
        if tls is not None:
            self.url = f"https://localhost:{self.port}"
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def _read(self, stream: BinaryIO, connection: socket.socket) -> Asked | None:
        line = stream.readline().decode()
        if not line:
            return None
        method, path, _ = line.split(" ", 2)
        headers = {}
        while header := stream.readline().decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        with self._guard:
            asked = Asked(len(self.asked), method, path, headers, body, connection)
            self.asked.append(asked)
        return asked


def head(status: int | str, headers: Mapping[str, object]) -> bytes:
    """Return a response up to its body, without the headers that are None."""
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status} -", *lines, "", ""]).encode()


def json_answer(text: str, status: int | str = 200) -> bytes:
    body = text.encode()
    return head(status, {"content-type": "application/json", "content-length": len(body)}) + body


STREAM_HEAD = head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: str) -> bytes:
    encoded = data.encode()
    return f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n"


def stream_answer(*events: str) -> bytes:
    """Return a whole stream of server-sent events, one chunk each."""
    return STREAM_HEAD + b"".join(chunk(f"{event}\n\n") for event in events) + LAST_CHUNK
