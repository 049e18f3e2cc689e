"""Launching of one of our Cog servers as a child, until it is ready, and its end with all it started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import urllib3

from engine.machine.processes import session_members
from engine.machine.root import SOURCE_ROOT
from errors import find_in_text
from errors.coded_error import CodedError
from errors.triton import ServerEnded, StartFailed
from runner.settings.cog_settings import CogSettings, load_cog_settings
from runner.settings.ports import Listener, check_ports_free
from runner.settings.server_config import CONFIG_VARIABLE, default_config
from runner.settings.settings import PATH_VARIABLES
from runner.supervision.child import how_ended, with_parent
from runner.supervision.tuning import TOKIO_THREADS

_POLL_S = 0.1
_END_POLL_S = 0.5
_HEALTH_TIMEOUT_S = 10.0
_END_S = 20.0
"""Time for what a server started to end, beside its requests."""
_LOG_TAIL_LINES = 15
_TIMED_OUT = "worker setup timed out"
"""Words of Cog's log."""
_SCRIPTS_OF_REQUESTS = "requests"
"""The value of COG_TRITON_SCRIPT that is no path."""


def environment(kind: str, port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Cog's server: which runner, which port, how many predictions at once.

    Paths are absolute, because the server runs in a folder of its own.
    """
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    given = {CONFIG_VARIABLE: default_config(), **os.environ}
    return {
        **TOKIO_THREADS,
        "COG_MAX_CONCURRENCY": "1" if kind == "builder" else str(CogSettings().max_concurrency),
        **os.environ,
        "PATH": path,  # Cog starts its worker as `python`.
        "PORT": str(port),
        "COG_PREDICT_TYPE_STUB": f"{SOURCE_ROOT / kind / 'run.py'}:Runner",
        "PYTHONPATH": str(SOURCE_ROOT),
        "PYTHONSAFEPATH": "1",
        **{name: _absolute(given[name]) for name in PATH_VARIABLES if given.get(name)},
        **extra,
    }


def _absolute(path: str) -> str:
    return path if path == _SCRIPTS_OF_REQUESTS else str(Path(path).absolute())


class CogServer:
    """A running Cog server of ours. ``kind`` is the folder of its ``run.py`` and its schema.

    NOTE: Linux sends it SIGTERM when the thread that created it ends, in whatever way: nothing is left of it.
    """

    def __init__(
        self,
        kind: str,
        *,
        host: str,
        port: int,
        log_path: Path,
        extra: Mapping[str, str],
        folder: Path | None = None,
        options: Sequence[str] = (),
        stop_grace_s: float = 0.0,
    ) -> None:
        """Initialize. ``folder``: with a schema; None: the kind's own. ``options``: of ``cog.server.http``.

        ``stop_grace_s``: for which the server lets requests run when it is stopped.
        """
        variables = environment(kind, port, extra)
        load_cog_settings(variables)
        check_ports_free(Listener(host, port, "Cog's server", "PORT"))
        self.kind = kind
        self.url = f"http://{host}:{port}"
        self.log_path = log_path
        self._stop_timeout_s = stop_grace_s + _END_S
        self._http = urllib3.PoolManager(timeout=_HEALTH_TIMEOUT_S, retries=False)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        module = f"{kind}.cog_server" if kind in ("builder", "runner") else "cog.server.http"
        log_path.write_bytes(b"")
        with log_path.open("ab") as log:  # Appended to, so that logrotate may truncate it.
            self._process = subprocess.Popen(
                [*with_parent(os.getpid()), sys.executable, "-m", module, "--host", host, *options],
                cwd=folder or SOURCE_ROOT / kind,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> "CogServer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def wait_ready(self, timeout_s: float, on_wait: Callable[[], str] = lambda: "starting") -> None:
        """Wait until Cog says READY. Raises the error of a failed setup, or E2106.

        ``on_wait`` is called several times a second and returns what the server does, for E2106.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            health = self.health()
            if health.get("status") == "READY":
                return
            if health.get("status") in ("SETUP_FAILED", "DEFUNCT") or not self.is_running():
                log = f"{health.get('setup', {}).get('logs', '')}\n{self._log()}"
                reason = "not within COG_SETUP_TIMEOUT" if _TIMED_OUT in log else "its setup failed"
                raise _last_error(log) or _start_failed(f"{reason}, while {on_wait()}", log)
            on_wait()
            time.sleep(_POLL_S)
        reason = f"not within {timeout_s:g} s (COG_SETUP_TIMEOUT), while {on_wait()}"
        raise _start_failed(reason, self._log())

    def health(self) -> dict[str, Any]:
        """Return Cog's ``/health-check``; empty while Cog does not answer."""
        try:
            # No connection is kept: the server may end at any time.
            response = self._http.request("GET", f"{self.url}/health-check", headers={"Connection": "close"})
            document: dict[str, Any] = response.json()
        except (urllib3.exceptions.HTTPError, ValueError):
            return {}
        return document

    def wait(self) -> None:
        """Wait until the server that was ready ends. Raises E2111."""
        # NOTE: not in one call that waits for ever: a signal that arrives just before it would not end it.
        while (code := self.exit_code()) is None:
            time.sleep(_END_POLL_S)
        # NOTE: nothing of the log, which has prompts and texts by now.
        raise ServerEnded(kind=self.kind, reason=how_ended(code), log_path=self.log_path)

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._process.poll()

    def is_running(self) -> bool:
        return self.exit_code() is None

    @property
    def pid(self) -> int:
        """Cog's server; all that it starts is in the session that it leads."""
        return self._process.pid

    def stop(self) -> None:
        """Send SIGTERM; after the grace period or at Ctrl-C another, which ends requests too; then SIGKILL.

        Then wait for all that it started.
        """
        for timeout_s in (self._stop_timeout_s, _END_S):
            if self.is_running():
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    self._process.wait(timeout_s)
        self._process.kill()
        self._process.wait()
        _wait_for_session(self.pid)

    def _log(self) -> str:
        return self.log_path.read_text(errors="replace")


def _start_failed(reason: str, log: str) -> StartFailed:
    tail = " | ".join(log.strip().splitlines()[-_LOG_TAIL_LINES:])
    return StartFailed(who="Cog's server", reason=reason, log_tail=tail)


def _last_error(log: str) -> CodedError | None:
    """Find the last text in a log that carries one of our codes, as that error."""
    errors = (find_in_text(text) for line in reversed(log.splitlines()) for text in _texts(line))
    return next(filter(None, errors), None)


def _texts(line: str) -> list[str]:
    """Return the texts in one of Cog's JSON lines, else the line itself."""
    try:
        entry = json.loads(line)
        fields = entry.get("fields", entry)  # With LOG_FORMAT=json they are in the line itself.
        return [text for text in fields.values() if isinstance(text, str)]
    except (ValueError, AttributeError):
        return [line]


def _wait_for_session(session: int) -> None:
    """Wait until no process of the session is left; after a grace period, kill what is."""
    deadline_s = time.monotonic() + _END_S
    while (members := session_members(session)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
