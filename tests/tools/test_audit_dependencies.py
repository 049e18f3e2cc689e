"""The audit asks about everything pinned, tells what is known, and says plainly when nobody could be asked.

The database is a stand-in on loopback that speaks OSV's ``/v1/querybatch``.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tools.audit_dependencies import ROOT, pinned


@dataclass
class Database:
    url: str = ""
    known: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """By name and version: ids, each on a page of its own."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    answer: bytes | None = None
    """Sent instead of results."""


@pytest.fixture
def database() -> Iterator[Database]:
    state = Database()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/querybatch"
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            state.asked += queries
            content = json.dumps({"results": [_result(state, query) for query in queries]}).encode()
            content = content if state.answer is None else state.answer
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


def _result(state: Database, query: dict[str, Any]) -> dict[str, Any]:
    ids = state.known.get((query["package"]["name"], query["version"]), [])
    page = int(query.get("page_token", 0))
    more = {"next_page_token": str(page + 1)} if page + 1 < len(ids) else {}
    return {"vulns": [{"id": ids[page]}], **more} if ids else {}


def audit(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "audit_dependencies.py", "--database", url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_everything_pinned_is_asked_about_once(database: Database) -> None:
    run = audit(database.url)
    assert (run.returncode, run.stderr) == (0, "")
    asked = [(each["package"]["name"], each["version"]) for each in database.asked]
    assert len(asked) == len(set(asked)) == len(pinned(ROOT))
    names = {name for name, _ in asked}
    assert {"cog", "vllm", "tensorrt-llm", "transformers", "pytest", "ruff"} <= names
    assert ("torch", "2.13.0") in asked


def test_what_is_known_is_told_with_its_place(database: Database) -> None:
    database.known["torch", "2.5.1"] = ["GHSA-one", "GHSA-two"]
    run = audit(database.url)
    assert run.returncode == 1
    assert "torch 2.5.1: GHSA-one, GHSA-two (in engine-tensorrt-llm.json)" in run.stdout


@pytest.mark.parametrize("answer", [b"", b"<html>", b"{}", b'{"results": []}', b"[]"])
def test_a_database_that_is_none_is_no_all_clear(database: Database, answer: bytes) -> None:
    database.answer = answer
    run = audit(database.url)
    assert run.returncode == 3
    assert run.stderr.startswith("not audited: ")
    assert run.stdout == ""


def test_no_database_is_told_in_one_line() -> None:
    run = audit("http://127.0.0.1:1")
    assert (run.returncode, run.stderr.count("\n")) == (3, 1)
    assert "nothing is known" in run.stderr
