"""The instruments measure what they say; how fast anything is decides nothing here."""

import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cache.store import open_engine
from engine.machine.processes import descendants
from perf.bench.capacity import capacity
from perf.bench.floor import floor, record
from perf.bench.row import Row, budget_table
from perf.bench.transfer import make_tar, serve_file
from perf.load.http import Request
from perf.processes import OTHER, cpu_s_by_role, memory_bytes
from tests.runner.servers import is_running, wait_until
from tests.scripted_server import Asked, ScriptedServer, Write

ROOT = Path(__file__).resolve().parents[3]


def cells(text: str, first: str) -> list[str]:
    row = next(line for line in text.splitlines() if line.startswith(f"| {first} "))
    return [cell.strip() for cell in row.split("|")[2:-1]]


@pytest.mark.servers
def test_the_layers_are_measured_in_one_run_with_every_process_named() -> None:
    command = [sys.executable, "-m", "perf", "bench", "--layers", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    layers = (
        "engine slot, Triton HTTP",
        "ensemble, Triton HTTP",
        "whole stack, Cog JSON",
        "whole stack, Cog SSE",
        "API server, JSON",
        "API server, events",
    )
    for layer in layers:
        speed, first_token, added, _, not_served = cells(done.stdout, layer)
        assert 0 < float(speed) <= 100.1
        assert (first_token == "-") is (added == "-") is layer.endswith("JSON")
        assert not_served == "0"
    roles = cells(done.stdout, "CPU s per 1,000 tokens")
    assert roles[-1] == "load generator"
    assert {"coglet worker", "triton", "stub: tensorrt_llm", "API server"} <= set(roles)
    assert re.search(r"Slowest: .+\. Most CPU of the whole stack: .+, \d+% of the server's\.", done.stdout)


@pytest.mark.servers
def test_a_terminated_bench_stops_the_servers_that_it_started() -> None:
    command = [sys.executable, "-m", "perf", "bench", "--short"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        wait_until(lambda: len(descendants(bench.pid)) > 1)
        started = descendants(bench.pid)
        bench.terminate()
        assert bench.wait(60) == 130
    assert not any(map(is_running, started))


def test_cpu_time_is_that_of_the_session() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('spent', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        process.stdout.readline()
        spent_s = cpu_s_by_role(process.pid)[OTHER]
        held_bytes = memory_bytes(process.pid)
        process.kill()
    assert 0.25 <= spent_s <= 2.0
    assert held_bytes > 1 << 20
    assert not cpu_s_by_role(process.pid)


def test_a_row_is_kept_within_its_limit_and_with_nothing_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for row, verdict in (
        (Row("a", 98.0, 98.0, at_least=True), "pass"),
        (Row("a", 97.9, 98.0, at_least=True), "**FAIL**"),
        (Row("a", 99.0, 98.0, at_least=True, not_served=1), "**FAIL**"),
        (Row("a", 3.1, 3.0, " ms"), "**FAIL**"),
        (Row("a", 3.1, None, " ms"), ""),
        (Row("a", 3.1, None, " ms", not_served=1), "**FAIL**"),
    ):
        assert cells(budget_table([row]), "a")[-1] == verdict
    absolute = Row("a", 97.0, 98.0, at_least=True, is_absolute=True)
    for name, verdict in (("Intel(R) Xeon(R) @ 2.10GHz, 2 CPUs", "**FAIL**"), ("AMD EPYC, 2 CPUs", "")):
        monkeypatch.setattr("perf.bench.row.machine", lambda name=name: name)
        assert cells(budget_table([absolute]), "a") == [">= 98", "97.0", "0", verdict]


@pytest.mark.parametrize("carried", [3, 7.5, 64, 300, 10_000])
def test_the_capacity_is_found_where_the_pace_falls(carried: float) -> None:
    asked = []

    def pace(streams: int) -> float:
        asked.append(streams)
        return min(1.0, 1.0 - 0.03 * math.log2(streams / carried + 1e-9) - 0.03)

    found = capacity(pace)
    assert found == pytest.approx(0 if carried < 4 else min(carried, 512), rel=0.35)
    assert len(asked) == len(set(asked)) <= 6


@pytest.mark.slow
def test_the_floor_answers_with_the_same_bytes_at_the_same_times() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        time.sleep(0.2)
        write(b"later")
        return True

    with ScriptedServer(answer) as server:
        request = Request("POST", f"{server.url}/x", {}, b"body")
        recording = record(request)
    assert b"".join(piece for _, piece in recording).endswith(b"firstlater")
    with floor(recording) as lowest:
        for _ in range(2):
            again = record(Request("POST", f"{lowest.url}/x", {}, b"body"))
            assert b"".join(piece for _, piece in again) == b"".join(piece for _, piece in recording)
            assert again[-1][0] >= recording[-1][0]


def test_an_engine_comes_whole_from_the_file_server(tmp_path: Path) -> None:
    tar = make_tar(tmp_path, 1 << 20, 3)
    with serve_file(tar) as url:
        engine = open_engine(url, tmp_path / "cache")
    sizes = [path.stat().st_size for path in sorted(engine.path.glob("weights-*.bin"))]
    assert sizes == [1 << 20] * 3
