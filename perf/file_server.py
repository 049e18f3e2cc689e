"""A file on loopback HTTP, with ranges, sent by the kernel: a server that is never what takes the time."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serve_file(path: Path) -> Iterator[str]:
    """Serve ``path`` under any name; yields its URL."""

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
            with path.open("rb") as file, suppress(ConnectionError):  # The client has disconnected.
                self.connection.sendfile(file, first, last + 1 - first)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{path.name}"
        finally:
            server.shutdown()
