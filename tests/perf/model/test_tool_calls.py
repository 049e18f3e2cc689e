"""``python -m perf tool-calls``: what it asks, and which answers it counts as valid."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perf.__main__ import main
from perf.model.tool_calls import fits

GOOD = '{"city": "Paris", "unit": "celsius", "days": 3}'
PROPERTIES = {
    "people": {"type": "integer", "minimum": 1, "maximum": 20},
    "outside": {"type": "boolean"},
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.arguments = GOOD
        self.asked: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        half = len(self.server.arguments) // 2
        functions = [
            {"name": "get_weather", "arguments": ""},
            {"arguments": self.server.arguments[:half]},
            {"arguments": self.server.arguments[half:]},
        ]
        events = [
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": each}]}}]} for each in functions
        ]
        lines = [json.dumps(each) for each in [*events, {"choices": [], "usage": {"completion_tokens": 9}}]]
        self._send("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode())

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    found = [Server(), Server()]
    for server in found:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield found
    for server in found:
        server.shutdown()
        server.server_close()


def measured(servers: list[Server]) -> int:
    return main(
        ["tool-calls", *(each.url for each in servers), "--requests", "4", "--at-once", "2", "--rounds", "2"]
    )


def test_servers_are_asked_the_same_and_their_calls_are_counted(
    servers: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(servers) == 0
    first, second = ({each["seed"]: each for each in server.asked} for server in servers)
    assert first == second
    assert len(first) == 8
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [[cell.strip() for cell in row.split("|")][2:4] for row in rows] == [["8", "8"]] * 2


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', "{", '{"city": 1, "unit": "celsius", "days": 3}'])
def test_a_call_that_does_not_fit_is_told(
    servers: list[Server], capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    servers[1].arguments = arguments
    assert measured(servers) == 1
    assert f": {arguments}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"people": 2, "outside": True}, True),
        ({"people": True, "outside": True}, False),
        ({"people": 21, "outside": False}, False),
        ({"people": 2, "outside": "no"}, False),
        ({"people": 2, "outside": True, "more": 1}, False),
        ([], False),
    ],
)
def test_fits(given: object, expected: bool) -> None:
    assert fits(given, PROPERTIES) is expected
