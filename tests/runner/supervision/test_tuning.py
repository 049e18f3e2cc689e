"""Scheduling and malloc: of the worker and Cog's server and all that they start, but not of the engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from perf.processes import role_of
from runner.supervision.tuning import restore_malloc, tune_environment
from tests.runner.servers import CogUnderTest, command_of

_PROGRAM = """
import os, subprocess, sys, threading
from runner.supervision.child import with_parent
from runner.supervision.tuning import schedule_as_batch

def policies():
    return [os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")]

wait = threading.Event()
threading.Thread(target=wait.wait).start()
before = policies()
schedule_as_batch()
threading.Thread(target=wait.wait).start()
after = policies()
wait.set()
ask = "import os; print(os.sched_getscheduler(0))"
child = subprocess.check_output([*with_parent(os.getpid()), sys.executable, "-c", ask], text=True)
print([before, after, int(child)])
"""


def test_all_threads_of_the_process_and_no_child() -> None:
    told = subprocess.check_output([sys.executable, "-c", _PROGRAM], cwd=SOURCE_ROOT, text=True)
    ever, patient = os.SCHED_OTHER, os.SCHED_BATCH
    assert told.strip() == str([[ever, ever], [patient, patient, patient], ever])


OFF = "glibc.malloc.tcache_count=0"


def _variables(pid: int) -> list[str]:
    """Return the variables that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


@pytest.mark.servers
def test_all_that_cogs_server_starts_has_none_but_the_engine(cog: CogUnderTest) -> None:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    ours = {role_of(command_of(pid)): pid for pid in pids if _session(pid) == cog.server.pid}
    assert {"coglet worker", "triton", "stub: tensorrt_llm", "engine server"} <= ours.keys()
    for role in ("coglet worker", "triton", "stub: tensorrt_llm"):
        assert f"GLIBC_TUNABLES={OFF}" in _variables(ours[role])
    assert not any(each.startswith("GLIBC_TUNABLES=") for each in _variables(ours["engine server"]))


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None  # It has ended.


@pytest.mark.parametrize("given", ["", "glibc.malloc.check=3", "glibc.malloc.tcache_count=3", "a=1:b=2"])
def test_other_settings_stay_and_one_of_the_same_name_wins(given: str) -> None:
    before = {"GLIBC_TUNABLES": given} if given else {}
    environment = dict(before)
    tune_environment(environment)
    assert environment.pop("TOKIO_WORKER_THREADS") == "1"
    assert environment["GLIBC_TUNABLES"].endswith("tcache_count=3" if "tcache" in given else OFF)
    assert environment["GLIBC_TUNABLES"].startswith(given)
    restore_malloc(environment)
    assert environment == before


def test_a_process_that_is_forked_while_an_engine_loads_collects_its_garbage() -> None:
    program = """
import gc, os
from runner.supervision.tuning import uncollected
with uncollected():
    here, child = gc.isenabled(), os.fork()
    if not child:
        os._exit(gc.isenabled())
print(here, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gc.isenabled())
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.split() == ["False", "1", "True"]
