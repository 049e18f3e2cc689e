"""Run a program of ``builder/conversion`` in the engine environment, which has torch and transformers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from builder.engine_environment import program_environment
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.redact import redact_text
from errors.build import ConversionFailed

TIMEOUT_S = 6 * 3600.0

_PROGRAMS = Path(__file__).parent / "conversion"
_NAP_S = 0.2
_TAIL_CHARACTERS = 1500


def run_conversion(program: str, arguments: Sequence[str | Path], *, what: str, log: Path) -> None:
    """Run ``conversion/<program>`` to its end; ConversionFailed tells its last lines.

    It works without a network, and dies with the build if that is cancelled.
    """
    python = engine_python()
    environment = program_environment(offline=True)
    command = [python, str(_PROGRAMS / program), *map(str, arguments)]
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as exc:
            reason = f"{ENGINE_PYTHON_VARIABLE}={python} can't be started: {exc.strerror}"
            raise ConversionFailed(what=what, reason=reason, log_tail="(none)") from exc
        returncode = _wait(child)
    if returncode != 0:
        reason = "no end within the time limit" if returncode is None else f"exit code {returncode}"
        raise ConversionFailed(what=what, reason=reason, log_tail=_tail(log))


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    """The exit code, None if the child had to be stopped; in naps, so that Cog can cancel the build."""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            try:
                return child.wait(_NAP_S)
            except subprocess.TimeoutExpired:
                continue
        return None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return redact_text(text[-_TAIL_CHARACTERS:]) or "(none)"
