"""The floor: the smallest asyncio server that writes the same bytes at the same times as another server did.

No server in Python costs less for the same answer. The answer is recorded from one request that runs alone.
"""

import asyncio
import multiprocessing
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from perf.load.http import Request
from perf.load.response import ResponseReader
from perf.processes import processes
from perf.servers import HOST

Recording = Sequence[tuple[float, bytes]]
"""Seconds since the request, and what came then: framing and all."""
_READ_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def record(request: Request) -> Recording:
    reader = ResponseReader()
    pieces = []
    with socket.create_connection((request.origin.host, request.origin.port), _TIMEOUT_S) as connection:
        started_s = time.perf_counter()
        connection.sendall(request.encoded)
        while not reader.is_over:
            data = connection.recv(_READ_BYTES)
            pieces.append((time.perf_counter() - started_s, data))
            reader.feed(0.0, data)
    return pieces


class Floor(NamedTuple):
    url: str
    pid: int

    def cpu_s(self) -> float:
        return next(each.cpu_s for each in processes() if each.folder.name == str(self.pid))


@contextmanager
def floor(recording: Recording) -> Iterator[Floor]:
    """Start a process that answers every request with the recording."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(recording, theirs), daemon=True)
    process.start()
    try:
        yield Floor(f"http://{HOST}:{ours.recv()}", process.pid or 0)
    finally:
        process.kill()
        process.join()


def _serve(recording: Recording, port: Connection) -> None:
    class Replay(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            self.unread = b""

        def data_received(self, data: bytes) -> None:
            self.unread += data
            head, _, body = self.unread.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is not None and len(body) >= int(length[1]):
                self.unread = b""
                now_s = loop.time()
                for after_s, piece in recording:
                    loop.call_at(now_s + after_s, self.transport.write, piece)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Replay, HOST, 0))
    port.send(server.sockets[0].getsockname()[1])
    loop.run_forever()
