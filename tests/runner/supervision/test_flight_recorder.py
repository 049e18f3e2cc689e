"""The flight recorder's bundles, the likely cause of a failure, and when failures are too many."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from runner.supervision import failures, flight_recorder
from runner.supervision.failures import FailureLog, ProcessFailure, likely_cause
from runner.supervision.flight_recorder import FlightRecorder, RequestShapes


def test_only_the_newest_bundles_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_KEPT_BUNDLES", 3)
    recorder = FlightRecorder(tmp_path / "deep" / "flights", {"engine_kind": "paced"}, list)
    bundles = [
        recorder.record(ProcessFailure("triton", f"reason {number}", ("line",))) for number in range(5)
    ]
    assert sorted((tmp_path / "deep" / "flights").iterdir()) == bundles[2:]
    assert json.loads((bundles[-1] / "failure.json").read_text())["reason"] == "reason 4"


def test_running_requests_are_told_from_those_that_ended(tmp_path: Path) -> None:
    shapes = RequestShapes("cog")
    recorder = FlightRecorder(tmp_path, {}, shapes.read)
    ended, _ = (shapes.begin({"input_ids": [1] * count}) for count in (3, 5))
    ended.ended("done")
    bundle = recorder.record(ProcessFailure("engine", "it ended", ()))
    assert json.loads((bundle / "failure.json").read_text())["running_requests"] == 1
    requests = json.loads((bundle / "requests.json").read_text())
    assert [each["inputs"]["input_ids_count"] for each in requests] == [3, 5]


@pytest.mark.parametrize(
    ("reason", "log_line", "cause"),
    [
        ("killed by SIGSEGV", "", "a crash in native code"),
        ("killed by SIGKILL", "", "killed by an operator"),
        ("exit code 1", "RuntimeError: CUDA error: an illegal memory access", "a CUDA error: RuntimeError"),
        ("exit code 1", "torch.OutOfMemoryError: CUDA out of memory. Tried", "the GPU's memory was full"),
        ("killed by SIGBUS", "No space left on device", "a disk or /dev/shm was full"),
        ("its server was stopped (SIGSTOP) and did not go on", "", "it hung"),
        ("exit code 3", "nothing of interest", "unknown"),
    ],
)
def test_the_likely_cause_is_told_from_signs(reason: str, log_line: str, cause: str) -> None:
    assert likely_cause(ProcessFailure("engine", reason, ("before", log_line)), 0).startswith(cause)


def test_a_process_that_the_kernel_killed_for_memory_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\noom 1\noom_kill 1\n")
    monkeypatch.setattr(failures, "_CGROUP_EVENTS", events)
    recorder = FlightRecorder(tmp_path / "flights", {}, list)
    events.write_text("low 0\nhigh 0\noom 2\noom_kill 2\n")
    failure = ProcessFailure("engine", "killed by SIGKILL", ())
    told = [json.loads((recorder.record(failure) / "failure.json").read_text()) for _ in range(2)]
    assert told[0]["likely_cause"].startswith("memory was full")
    assert told[1]["likely_cause"].startswith("killed by an operator")


def test_failures_are_too_many_only_within_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    unrecoverable = asyncio.Event()
    log = FailureLog(lambda failure: Path("bundle"), 3, 60, lambda line: None, unrecoverable)
    goes_on = []
    for now_s[0] in (0, 40, 80, 90, 95):
        goes_on.append(log.add(ProcessFailure("engine", "it ended", ())))
    assert goes_on == [True, True, True, False, False]
    assert unrecoverable.is_set()
