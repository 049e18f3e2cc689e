"""Shared by the tests of Cog's server."""

import asyncio
import http.server
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runner.servers import HOST, LoopThread

Webhook = tuple[str, queue.Queue[dict[str, Any]]]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    told: queue.Queue[dict[str, Any]] = queue.Queue()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, 0), Hook) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/", told
        server.shutdown()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    thread = LoopThread()
    yield thread.loop
    thread.end()
