"""The audit asks about everything pinned, tells what is known, and says plainly when nobody could be asked.

The database is a stand-in on loopback that speaks OSV's ``/v1/querybatch``.
"""

import json
import re
import subprocess
import sys
from typing import Any

from tests.scripted_server import Asked, ScriptedServer, Write, json_answer
from tools.audit_dependencies import REVIEWED, ROOT, pinned

KNOWN = {("torch", "2.5.1"): ["GHSA-one", "GHSA-two"]}


def database(known: dict[tuple[str, str], list[str]], answer: str | None = None) -> ScriptedServer:
    """``known``: ids by name and version, each on its own page. ``answer`` is sent instead of results."""

    def reply(asked: Asked, write: Write) -> bool:
        assert asked.path == "/v1/querybatch"
        results = [_result(known, query) for query in json.loads(asked.body)["queries"]]
        write(json_answer(json.dumps({"results": results}) if answer is None else answer))
        return True

    return ScriptedServer(reply)


def _result(known: dict[tuple[str, str], list[str]], query: dict[str, Any]) -> dict[str, Any]:
    ids = known.get((query["package"]["name"], query["version"]), [])
    page = int(query.get("page_token", 0))
    more = {"next_page_token": str(page + 1)} if page + 1 < len(ids) else {}
    return {"vulns": [{"id": ids[page]}], **more} if ids else {}


def audit(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "audit_dependencies.py", "--database", url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_everything_pinned_is_asked_about_once() -> None:
    with database({}) as server:
        run = audit(server.url)
    assert (run.returncode, run.stderr) == (0, "")
    queries = [query for asked in server.asked for query in json.loads(asked.body)["queries"]]
    asked = [(each["package"]["name"], each["version"]) for each in queries]
    assert len(asked) == len(set(asked)) == len(pinned(ROOT))
    names = {name for name, _ in asked}
    assert {"cog", "vllm", "tensorrt-llm", "transformers", "pytest", "ruff"} <= names
    assert ("torch", "2.13.0") in asked


def test_what_no_database_lists_is_told_with_the_day_of_its_review() -> None:
    """A new version of a package fails this test until somebody has reviewed what it carries."""
    carriers = {
        package
        for package, places in pinned(ROOT).items()
        if package[0] in {"nvidia-pytriton", "triton"} and any(place.endswith(".json") for place in places)
    }
    assert carriers == set(REVIEWED)
    with database({}) as server:
        run = audit(server.url)
    security = (ROOT / "docs" / "security.md").read_text()
    headings = {
        re.sub(r"[^a-z0-9 ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in security.splitlines()
        if line.startswith("#")
    }
    for program, day, where in REVIEWED.values():
        assert f"{program} (in " in run.stdout
        assert f"Reviewed on {day}" in security
        assert where.partition("#")[2] in headings


def test_what_is_known_is_told_with_its_place() -> None:
    with database(KNOWN) as server:
        run = audit(server.url)
    assert run.returncode == 1
    assert "torch 2.5.1: GHSA-one, GHSA-two (in engine-tensorrt-llm.json)" in run.stdout


def test_a_database_that_is_none_is_no_all_clear_and_is_told_in_one_line() -> None:
    for answer in ("", "<html>", "{}", '{"results": []}', "[]", None):
        with database({}, answer) as server:
            run = audit(server.url if answer is not None else "http://127.0.0.1:1")
        assert (run.returncode, run.stderr.count("\n")) == (3, 1)
        assert "known vulnerabilities" not in run.stdout
        assert run.stderr.startswith("not audited: ")
        assert run.stderr.endswith("; nothing is known\n")
