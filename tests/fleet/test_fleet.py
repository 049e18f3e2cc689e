"""The demo of ``make fleet``: only what runs on a server that is killed is lost."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from errors.settings import MissingRequirement
from perf import routers
from perf.__main__ import main
from perf.engines import paced_engine
from perf.peers.servers import server_name
from perf.processes import API_SERVER, OTHER
from tests.fleet.servers import needs_environment


@pytest.mark.long
@pytest.mark.servers
@needs_environment
def test_a_server_is_killed_one_is_added_and_one_is_drained(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", "round_robin", "--seconds", "3", "--streams", "8"]
    assert main(["fleet", *arguments]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if "|" in line]
    head, _, both, killed, added, drained, last = rows
    by = [head.index(f"by {name}") for name in "ABC"]
    cut, lost = head.index("cut"), head.index("lost")
    assert [row[lost] for row in rows[2:]] == ["0"] * 5
    assert [row[cut] for row in (both, added, drained, last)] == ["0"] * 4
    assert int(killed[cut])
    assert int(both[by[0]])
    assert int(both[by[1]])
    assert [added[by[1]], last[by[0]], last[by[1]]] == ["0"] * 3
    assert int(drained[by[2]])
    assert last[by[2]] == last[head.index("requests")]
    assert "Lost otherwise: nothing." in out


@pytest.mark.long
@pytest.mark.servers
@needs_environment
def test_a_router_is_measured_beside_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, result = paced_engine(tmp_path, 200), tmp_path / "rows.json"
    arguments = ["--engine", str(engine), "--servers", "api-1", "smg", "--workloads", "4x20x16"]
    assert main(["peers", *arguments, "--rounds", "1", "--result", str(result)]) == 0
    rows = {row["server"]: row for row in json.loads(result.read_text())}
    assert {name: row["summary"]["completed"] for name, row in rows.items()} == {"api-1": 16, "smg": 16}
    # Only the router's processes are its cost.
    assert rows["smg"]["cpu_s"].keys() <= {OTHER}
    assert API_SERVER in rows["api-1"]["cpu_s"]


@pytest.mark.parametrize("name", ["api-1", "vllm-1", "vllm-router", "vllm-rust"])
def test_servers_and_routers_have_names(name: str) -> None:
    assert server_name(name) == name


@pytest.mark.parametrize("name", ["api-N", "vllm-N", "api-0", "traefik"])
def test_what_is_no_server_is_refused(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        server_name(name)


def test_a_router_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "FLEET", tmp_path)
    with pytest.raises(MissingRequirement, match="smg was not found; `make fleet` installs it"):
        routers.find_program("smg")


def test_a_load_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--streams", "0"]) == 2
    assert capsys.readouterr().err.startswith("E1005 InvalidInput: streams must be at least 1")
