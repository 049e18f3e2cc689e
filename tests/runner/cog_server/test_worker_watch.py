"""Cog's server and a worker process with the real link, whose event loop answers, hangs, or is stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from engine.machine.root import SOURCE_ROOT
from runner.cog_server import worker_watch
from runner.cog_server.worker_watch import VARIABLE, WorkerWatch, send_line
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

_WORKER = """
import asyncio, sys, time
from runner.cog_server.worker_link import WorkerLink

async def main():
    link = WorkerLink(None, None, asyncio.get_running_loop())
    asyncio.get_running_loop().call_later(float(sys.argv[1]), time.sleep, 600)
    await asyncio.sleep(600)

asyncio.run(main())
"""
_NEVER_S = 600


class Worker:
    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.lines: list[str] = []
        self.pongs = 0
        self._link = link
        link.settimeout(0.01)
        self.watch = WorkerWatch(process.pid, partial(send_line, link), self.lines.append)

    def poll(self) -> int:
        try:
            data = self._link.recv(1024)
        except TimeoutError:
            data = b""
        for _ in range(data.count(b"pong\n")):
            self.pongs += 1
            self.watch.pong()
        self.watch.check()
        return self.pongs

    def has_ended(self) -> bool:
        self.poll()
        return self.process.poll() is not None


@contextmanager
def worker(hangs_after_s: float) -> Iterator[Worker]:
    """Provide a worker that has said hello."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(hangs_after_s)],
            env={**os.environ, VARIABLE: str(theirs.fileno()), "PYTHONPATH": str(SOURCE_ROOT)},
            pass_fds=[theirs.fileno()],
        )
        try:
            assert ours.recv(100) == f"hello {process.pid}\n".encode()
            yield Worker(process, ours)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_watch, "_PING_S", 0.2)
    monkeypatch.setattr(worker_watch, "_MAX_UNANSWERED", 20)


def test_a_worker_whose_event_loop_hangs_is_killed_and_one_that_answers_is_not() -> None:
    with worker(hangs_after_s=2) as hanging:
        hanging.watch.ready()
        wait_until(hanging.poll)
        assert hanging.lines == []
        wait_until(hanging.has_ended)
    assert hanging.process.returncode == -signal.SIGKILL
    (line,) = set(hanging.lines)  # Where processes end slowly, it is killed again.
    assert line.endswith("is killed: its event loop did not answer for 4 s")


def test_before_it_is_ready_a_worker_may_block_its_event_loop() -> None:
    with worker(hangs_after_s=0) as loading:
        deadline_s = time.monotonic() + 6
        while time.monotonic() < deadline_s:
            assert not loading.has_ended()
    assert loading.lines == []


def test_a_stopped_worker_is_killed_at_any_time_and_one_that_goes_on_is_not() -> None:
    with worker(hangs_after_s=_NEVER_S) as stopped:
        stopped.process.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + 1
        while time.monotonic() < deadline_s:
            assert not stopped.has_ended()
        stopped.process.send_signal(signal.SIGCONT)
        stopped.watch.ready()
        wait_until(stopped.poll)
        stopped.process.send_signal(signal.SIGSTOP)
        wait_until(stopped.has_ended)
    assert [line for line in stopped.lines if "it was stopped (SIGSTOP) and did not go on" in line]
