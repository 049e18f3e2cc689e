"""A file on loopback HTTP, with ranges, sent by the kernel: a server that is never what takes the time."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SEND_BYTES = 8 << 20
_PACED_SEND_BYTES = 256 << 10


@contextmanager
def serve_file(path: Path, bytes_per_s: float = math.inf) -> Iterator[str]:
    """Serve ``path`` under any name, to all connections together at most so fast; yields its URL."""
    pace = _Pace(bytes_per_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Else the end of each range waits for an acknowledgement.

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """No access log."""

        def do_GET(self) -> None:
            size_bytes = path.stat().st_size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first = int(wanted[1]) if wanted else 0
            last = min(int(wanted[2]) if wanted and wanted[2] else size_bytes - 1, size_bytes - 1)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size_bytes}")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                _send(self.connection.fileno(), file.fileno(), first, last + 1, pace)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{path.name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pace:
    """A network with this rate in bytes per second, shared by all senders."""

    def __init__(self, bytes_per_s: float) -> None:
        self.step_bytes = _SEND_BYTES if bytes_per_s == math.inf else _PACED_SEND_BYTES
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0
        """When it has carried all that it was given."""

    def wait(self, size_bytes: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._free_s = max(now_s, self._free_s) + size_bytes / self._bytes_per_s
            wait_s = self._free_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)


def _send(connection: int, file: int, first: int, end: int, pace: _Pace) -> None:
    while first < end:
        step_bytes = min(pace.step_bytes, end - first)
        pace.wait(step_bytes)
        try:
            sent = os.sendfile(connection, file, first, step_bytes)
        except ConnectionError:
            return  # Who reads may leave.
        if not sent:
            return
        first += sent
