"""An HTTP server on loopback whose answers a test writes byte by byte."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """One request. ``number`` counts from 0 over all connections."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked, Callable[[bytes], None]], bool]
"""Function that writes the answer with its second argument; True if the connection stays open."""


class ScriptedServer:
    """Use as ``with``; ``asked`` holds every request."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[Asked] = []
        self._guard = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                try:
                    while (asked := outer._read(self.rfile)) is not None and answer(asked, self._write):
                        pass
                except ConnectionError:
                    pass  # Clients that leave are part of some tests.

            def _write(self, data: bytes) -> None:
                self.wfile.write(data)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 512

        self._server = Server((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _read(self, stream: BinaryIO) -> Asked | None:
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
            asked = Asked(len(self.asked), method, path, headers, body)
            self.asked.append(asked)
        return asked


def json_answer(text: str, status: str = "200 OK") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: str) -> bytes:
    encoded = data.encode()
    return f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n"


def stream_answer(*events: str) -> bytes:
    """Return a whole stream of server-sent events, one chunk each."""
    return STREAM_HEAD + b"".join(chunk(f"{event}\n\n") for event in events) + LAST_CHUNK
