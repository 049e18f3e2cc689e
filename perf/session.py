"""A program of another project, as a child in a process session of its own."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.machine.processes import session_members
from runner.supervision.child import with_parent


@contextmanager
def started(
    command: Sequence[str], variables: Mapping[str, str], log_path: Path, stop_grace_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, with ``variables`` beside this process's, and stop all that it started.

    What it prints goes to ``log_path``.
    """
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
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(stop_grace_s)
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
