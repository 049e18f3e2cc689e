"""What Linux tells of processes: of stopped ones, of the dead, of children."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from engine.machine.processes import StoppedWatch, descendants, signal_that_ended, state_and_parent
from tests.runner.servers import wait_until

Process = subprocess.Popen[bytes]


@pytest.fixture
def sleeper() -> Iterator[Process]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_stopped_process_is_found_once_it_was_stopped_for_the_limit(sleeper: Process) -> None:
    watch = StoppedWatch(limit_s=0.05)
    assert watch.find([sleeper.pid]) is None
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: state_and_parent(sleeper.pid)[0] == "T")
    assert watch.find([os.getpid(), sleeper.pid]) is None
    assert wait_until(lambda: watch.find([os.getpid(), sleeper.pid])) == sleeper.pid


def test_one_that_went_on_meanwhile_begins_anew(sleeper: Process) -> None:
    watch = StoppedWatch(limit_s=3600)
    for _ in range(2):
        os.kill(sleeper.pid, signal.SIGSTOP)
        wait_until(lambda: state_and_parent(sleeper.pid)[0] == "T")
        assert watch.find([sleeper.pid]) is None
        assert watch._since_s
        os.kill(sleeper.pid, signal.SIGCONT)
        wait_until(lambda: state_and_parent(sleeper.pid)[0] != "T")
        assert watch.find([sleeper.pid]) is None
        assert not watch._since_s


def test_the_signal_that_ended_a_process_is_told_until_somebody_asks(sleeper: Process) -> None:
    assert signal_that_ended(sleeper.pid) is None
    os.kill(sleeper.pid, signal.SIGSEGV)
    assert wait_until(lambda: signal_that_ended(sleeper.pid)) == signal.SIGSEGV
    sleeper.wait()
    assert signal_that_ended(sleeper.pid) == 0
    assert state_and_parent(sleeper.pid) == ("X", 0)


def test_descendants_are_children_and_theirs() -> None:
    inner = "import time; time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer])
    try:
        (child,) = wait_until(lambda: descendants(process.pid))
        assert state_and_parent(child)[1] == process.pid
        assert {process.pid, child} <= set(descendants(os.getpid()))
    finally:
        for pid in (child, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
