"""A program of another project, as a child in a process session of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import urllib3

from engine.machine.processes import session_members
from errors.triton import StartFailed
from runner.supervision.child import with_parent

_STOP_GRACE_S = 30.0
_POLL_S = 0.1
_LOG_CHARACTERS = 3000


@contextmanager
def serving(
    command: Sequence[str], variables: Mapping[str, str], log_path: Path, health_url: str, timeout_s: float
) -> Iterator[int]:
    """Start a server, with ``variables`` beside this process's, and stop all that it started.

    What it prints goes to ``log_path``. Provides its process session once ``health_url`` answers 200. Raises
    StartFailed.
    """
    deadline_s = time.monotonic() + timeout_s
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*with_parent(os.getpid()), *command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not _is_ready(health_url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                reason = f"it did not answer within {timeout_s:g} s or ended"
                end = log_path.read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise StartFailed(who=log_path.stem, reason=reason, log_tail=end)
            time.sleep(_POLL_S)
        yield process.pid
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_GRACE_S)
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _is_ready(url: str) -> bool:
    with suppress(urllib3.exceptions.HTTPError):
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    return False
