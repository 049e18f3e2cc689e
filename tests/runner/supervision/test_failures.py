"""The line of a failure, its likely cause, and when failures are too many."""

import asyncio
import json
from pathlib import Path

import pytest

from runner.observability.logs import as_json
from runner.supervision import failures
from runner.supervision.failures import FailureLog, FailureReport, ProcessFailure, likely_cause


def test_a_failure_is_one_line_which_as_json_has_all_that_is_known() -> None:
    failure = ProcessFailure("engine", "killed by SIGSEGV", tuple(f"line {number}" for number in range(50)))
    told = "engine failed: killed by SIGSEGV; likely cause: a crash in native code"
    assert FailureReport("console", dict).line(failure) == told
    line = FailureReport("json", lambda: {"running_requests": 2}).line(failure)
    assert as_json(line) == line
    fields = json.loads(line)
    assert (fields["level"], fields["message"], fields["running_requests"]) == ("error", told, 2)
    assert (fields["part"], fields["reason"]) == ("engine", "killed by SIGSEGV")
    assert fields["likely_cause"] == "a crash in native code"
    assert fields["machine"]
    assert fields["last_lines"] == [f"line {number}" for number in range(20, 50)]


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
    report = FailureReport(None, dict)
    events.write_text("low 0\nhigh 0\noom 2\noom_kill 2\n")
    failure = ProcessFailure("engine", "killed by SIGKILL", ())
    told = [report.line(failure) for _ in range(2)]
    assert "likely cause: memory was full" in told[0]
    assert "likely cause: killed by an operator" in told[1]


def test_failures_are_too_many_only_within_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    unrecoverable = asyncio.Event()
    log = FailureLog(str, 3, 60, lambda line: None, unrecoverable)
    goes_on = []
    for now_s[0] in (0, 40, 80, 90, 95):
        goes_on.append(log.add(ProcessFailure("engine", "it ended", ())))
    assert goes_on == [True, True, True, False, False]
    assert unrecoverable.is_set()
