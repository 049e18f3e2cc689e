"""The flight recorder: what was known when something died, as a folder that an operator can send on.

A bundle holds ``failure.json`` (what, when, exit signal, likely cause), ``log.txt`` (the last lines),
``requests.json`` (shapes of the last requests: lengths and sampling, never a prompt or a text) and
``engine_manifest.json``. The newest bundles are kept.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from runner.failures import Failure, likely_cause, oom_kills

_KEPT_BUNDLES = 20
_KEPT_REQUESTS = 128
_NOT_SHAPES = ("runner_seconds", "stream_id")


@dataclass
class RequestShape:
    """One request, as far as a recorder may know it."""

    inputs: dict[str, Any]
    started_s: float = field(default_factory=time.time)
    output_tokens: int = 0
    ended: str | None = None
    """None while it runs, else ``done`` or the code of its error."""


def shape_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The slot's tensors with lengths in place of tokens: numbers and switches stay, all else is a size."""
    shape: dict[str, Any] = {}
    for name, value in inputs.items():
        if name in _NOT_SHAPES:
            continue
        if isinstance(value, (bool, int, float)):
            shape[name] = value
        else:
            shape[f"{name}_count"] = len(value) if hasattr(value, "__len__") else 1
    return shape


class FlightRecorder:
    """Remembers the last requests, and writes a bundle for each failure into ``folder``."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self._folder = folder
        self._manifest = manifest
        self._requests: deque[RequestShape] = deque(maxlen=_KEPT_REQUESTS)
        self._oom_kills = oom_kills()

    def request(self, inputs: Mapping[str, Any]) -> RequestShape:
        """Remember a request; the caller keeps what it gets up to date."""
        shape = RequestShape(shape_of(inputs))
        self._requests.append(shape)
        return shape

    def record(self, failure: Failure) -> Path:
        """Write a bundle; its folder. Raises OSError."""
        now = datetime.now(timezone.utc)
        kills, self._oom_kills = self._oom_kills, oom_kills()
        name = f"{now:%Y%m%dT%H%M%S.%f}Z-{failure.part.replace(' ', '-')}"
        partial = self._folder / f".{name}"
        partial.mkdir(parents=True)
        _write(
            partial / "failure.json",
            {
                "part": failure.part,
                "time": now.isoformat(),
                "reason": failure.reason,
                "likely_cause": likely_cause(failure, self._oom_kills - kills),
                "running_requests": sum(each.ended is None for each in self._requests),
                "machine": platform.platform(),
            },
        )
        (partial / "log.txt").write_text("".join(f"{line}\n" for line in failure.log_tail))
        _write(partial / "requests.json", [vars(each) for each in self._requests])
        _write(partial / "engine_manifest.json", self._manifest)
        bundle = self._folder / name
        partial.rename(bundle)
        self._drop_oldest()
        return bundle

    def _drop_oldest(self) -> None:
        bundles = sorted(path for path in self._folder.iterdir() if (path / "failure.json").is_file())
        for old in bundles[:-_KEPT_BUNDLES]:
            shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")
