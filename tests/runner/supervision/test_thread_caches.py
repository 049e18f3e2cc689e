"""Our processes have no caches of malloc's threads; the engine has, and whoever runs us may want them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perf.bench.processes import role_of
from runner.supervision.thread_caches import switch_off, switch_on
from tests.runner.servers import CogUnderTest, command_of

OFF = "glibc.malloc.tcache_count=0"


def _variables(pid: int) -> list[str]:
    """Those that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


def test_all_that_cogs_server_starts_has_none_but_the_engine(cog: CogUnderTest) -> None:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    ours = {role_of(command_of(pid)): pid for pid in pids if _session(pid) == cog.server.pid}
    assert {"coglet worker", "triton", "stub: tensorrt_llm", "engine worker"} <= ours.keys()
    for role in ("coglet worker", "triton", "stub: tensorrt_llm"):
        assert f"GLIBC_TUNABLES={OFF}" in _variables(ours[role])
    assert not any(each.startswith("GLIBC_TUNABLES=") for each in _variables(ours["engine worker"]))


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None  # It has ended.


@pytest.mark.parametrize("given", ["", "glibc.malloc.check=3", "glibc.malloc.tcache_count=3", "a=1:b=2"])
def test_other_settings_stay_and_one_of_the_same_name_wins(given: str) -> None:
    before = {"GLIBC_TUNABLES": given} if given else {}
    environment = dict(before)
    switch_off(environment)
    assert environment["GLIBC_TUNABLES"].endswith("tcache_count=3" if "tcache" in given else OFF)
    assert environment["GLIBC_TUNABLES"].startswith(given)
    switch_on(environment)
    assert environment == before
