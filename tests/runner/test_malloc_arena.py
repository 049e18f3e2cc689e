"""Cog's worker has one arena of malloc; nothing that it starts inherits that."""

from __future__ import annotations

import os
from pathlib import Path

from bench.processes import role_of
from runner.malloc_arena import set_for_worker, unset_for_children
from tests.runner.servers import CogUnderTest, command_of


def _has_one_arena(pid: int) -> bool:
    """By the variables that a process was started with."""
    return "MALLOC_ARENA_MAX=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")


def test_cogs_worker_has_it_and_nothing_that_it_starts(cog: CogUnderTest) -> None:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    ours = {role_of(command_of(pid)): pid for pid in pids if _session(pid) == cog.server.pid}
    assert {"coglet worker", "triton", "stub: tensorrt_llm", "engine worker"} <= ours.keys()
    assert [role for role, pid in ours.items() if _has_one_arena(pid)] == ["coglet worker"]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None  # It has ended.


def test_a_setting_of_whoever_runs_us_stays_for_all() -> None:
    environment = {"MALLOC_ARENA_MAX": "4"}
    set_for_worker(environment)
    unset_for_children(environment)
    assert environment == {"MALLOC_ARENA_MAX": "4"}


def test_without_one_nothing_of_ours_is_left() -> None:
    environment: dict[str, str] = {}
    set_for_worker(environment)
    assert environment["MALLOC_ARENA_MAX"] == "1"
    unset_for_children(environment)
    assert not environment
