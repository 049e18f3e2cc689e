"""The flight recorder: what was known when something died, as a folder that an operator can send on.

A bundle holds ``failure.json`` (what, when, exit signal, likely cause), ``log.txt`` (the last lines),
``requests.json`` (shapes of the last requests: lengths and sampling, never a prompt or a text) and
``engine_manifest.json``. The newest bundles are kept.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from runner.supervision.failures import Failure, likely_cause, oom_kills

_KEPT_BUNDLES = 20


class FlightRecorder:
    """Writes a bundle for each failure into ``folder``."""

    def __init__(
        self, folder: Path, manifest: Mapping[str, Any], last_requests: Callable[[], Sequence[Any]]
    ) -> None:
        """``last_requests``: their shapes, see ``runner.supervision.request_shapes``."""
        self._folder = folder
        self._manifest = manifest
        self._last_requests = last_requests
        self._oom_kills = oom_kills()

    def record(self, failure: Failure) -> Path:
        """Write a bundle; its folder. Raises OSError."""
        now = datetime.now(timezone.utc)
        kills, self._oom_kills = self._oom_kills, oom_kills()
        name = f"{now:%Y%m%dT%H%M%S.%f}Z-{failure.part.replace(' ', '-')}"
        partial = self._folder / f".{name}"
        partial.mkdir(parents=True)
        requests = self._last_requests()
        _write(
            partial / "failure.json",
            {
                "part": failure.part,
                "time": now.isoformat(),
                "reason": failure.reason,
                "likely_cause": likely_cause(failure, self._oom_kills - kills),
                "running_requests": sum(each["ended"] is None for each in requests),
                "machine": platform.platform(),
            },
        )
        (partial / "log.txt").write_text("".join(f"{line}\n" for line in failure.log_tail))
        _write(partial / "requests.json", requests)
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
