"""Starts one of our Cog servers as a child, waits until it is ready, and stops all that it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from engine.machine.root import SOURCE_ROOT
from errors import find_in_text
from errors.triton import TritonStartFailed
from runner.settings.ports import check_port_free

_POLL_S = 0.1
_STOP_GRACE_S = 20.0
_LOG_TAIL_LINES = 15


def environment(kind: str, port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """What Cog's server reads: which runner, which port, how many predictions at once."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return {
        # NOTE: in a burst two of Cog's threads meet at its slots' locks and one refuses a free slot;
        # with one thread none does (seen with 0.23.1).
        "TOKIO_WORKER_THREADS": "1",
        "COG_MAX_CONCURRENCY": "1" if kind == "builder" else "64",
        **os.environ,
        "PATH": path,  # Cog starts its worker as `python`.
        "PORT": str(port),
        "COG_PREDICT_TYPE_STUB": f"{SOURCE_ROOT / kind / 'run.py'}:Runner",
        "PYTHONPATH": str(SOURCE_ROOT),
        "PYTHONSAFEPATH": "1",
        **extra,
    }


def command(kind: str, host: str) -> list[str]:
    server = "runner.cog_server" if kind == "runner" else "cog.server.http"
    return [sys.executable, "-m", server, "--host", host]


class CogServer:
    """A running Cog server of ours. ``kind`` is the folder of its ``run.py`` and its schema."""

    def __init__(self, kind: str, *, host: str, port: int, log_path: Path, extra: Mapping[str, str]) -> None:
        check_port_free(host, port, f"the {kind}'s Cog server", "PORT")
        self.kind = kind
        self.url = f"http://{host}:{port}"
        # One for all questions: making one costs more than asking. No connection is kept: the server may end.
        self._http = httpx.Client(timeout=10, limits=httpx.Limits(max_keepalive_connections=0))
        self._log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command(kind, host),
                cwd=SOURCE_ROOT / kind,
                env=environment(kind, port, extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> CogServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until Cog says READY. Raises what setup failed with, or E2106."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            health = self.health()
            if health.get("status") == "READY":
                return
            if health.get("status") in ("SETUP_FAILED", "DEFUNCT") or self._process.poll() is not None:
                log = (
                    f"{health.get('setup', {}).get('logs', '')}\n{self._log_path.read_text(errors='replace')}"
                )
                raise find_in_text(_last_error(log)) or self._start_failed("its setup failed", log)
            time.sleep(_POLL_S)
        raise self._start_failed(f"not within {timeout_s:g} s", self._log_path.read_text(errors="replace"))

    def health(self) -> dict[str, Any]:
        """Cog's ``/health-check``, or nothing while it does not answer."""
        try:
            document: dict[str, Any] = self._http.get(f"{self.url}/health-check").json()
        except (httpx.HTTPError, ValueError):
            return {}
        return document

    def is_running(self) -> bool:
        return self._process.poll() is None

    def check_running(self) -> None:
        """Raise E2106 if the server has ended."""
        if not self.is_running():
            log = self._log_path.read_text(errors="replace")
            raise self._start_failed(f"it ended (exit code {self._process.returncode})", log)

    @property
    def pid(self) -> int:
        """Cog's server; all that it starts is in the session that it leads."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self._log_path

    def stop(self) -> None:
        """SIGTERM, a grace period, SIGKILL; then wait for all that it started."""
        session = self._process.pid
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        _wait_for_session(session)

    def _start_failed(self, reason: str, log: str) -> TritonStartFailed:
        tail = " | ".join(log.strip().splitlines()[-_LOG_TAIL_LINES:])
        return TritonStartFailed(reason=reason, log_tail=tail)


def _last_error(log: str) -> str:
    """The last text in a log that carries one of our codes."""
    for line in reversed(log.splitlines()):
        for text in _texts(line):
            if find_in_text(text) is not None:
                return text
    return ""


def _texts(line: str) -> list[str]:
    """What a line of a log says: the texts of one of Cog's JSON lines, else the line itself."""
    try:
        entry = json.loads(line)
        fields = entry.get("fields", entry)  # With LOG_FORMAT=json they stand in the line itself.
        return [text for text in fields.values() if isinstance(text, str)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [line]


def _wait_for_session(session: int) -> None:
    """Wait until no process of the session is left; after a grace period, kill what is."""
    deadline_s = time.monotonic() + _STOP_GRACE_S
    while (members := _session_members(session)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session_members(session: int) -> list[int]:
    """Processes of a session that have not ended: Cog's server, its worker, Triton, stubs, engine."""
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It ended while we looked.
            # What stands after the name, which is in parentheses: state, parent, group, session.
            state, _, _, its_session = status.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append(int(status.parent.name))
    return members


@contextmanager
def followed(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Report the lines that a prediction printed, as they come into a server's log."""
    done = threading.Event()

    def follow() -> None:
        with path.open(errors="replace") as log:
            while True:
                is_last = done.is_set()
                for line in log:
                    if (text := prediction_line(line)) is not None:
                        report(text)
                if is_last:
                    return
                done.wait(_POLL_S)

    thread = threading.Thread(target=follow, name="follow-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def prediction_line(line: str) -> str | None:
    """The text that a prediction printed, from a line of Cog's JSON log; None for other lines."""
    try:
        entry = json.loads(line)
        if entry["fields"].get("source") == "Stdout":
            return str(entry["fields"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # Not one of Cog's lines.
    return None
