"""The flight recorder: a folder of facts for each failure, which an operator can send on.

A bundle holds ``failure.json`` (what, when, exit signal, likely cause), ``log.txt`` (the last lines),
``requests.json`` (shapes of the last requests: lengths and sampling, never a prompt or a text) and
``engine_manifest.json``. The newest bundles are kept.

Each process keeps the shapes of its last requests in memory that may be a file: so the recorder, in Cog's
worker, reads those of the OpenAI-compatible API's process at once, whatever state that process is in.
"""

from __future__ import annotations

import json
import mmap
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from runner.supervision.failures import ProcessFailure, likely_cause, oom_kills

_KEPT_BUNDLES = 20
KEPT = 128
_SHAPE_BYTES = 4096
"""One shape as JSON takes a fourth of that."""
_COUNT_BYTES = 8
_COUNTS_BYTES = KEPT * _COUNT_BYTES
_FILE_BYTES = _COUNTS_BYTES + KEPT * _SHAPE_BYTES


class FlightRecorder:
    """Writes a bundle for each failure into ``folder``."""

    def __init__(
        self, folder: Path, manifest: Mapping[str, Any], last_requests: Callable[[], Sequence[Any]]
    ) -> None:
        """``last_requests``: returns their shapes."""
        self._folder = folder
        self._manifest = manifest
        self._last_requests = last_requests
        self._oom_kills = oom_kills()

    def record(self, failure: ProcessFailure) -> Path:
        """Write a bundle and return its folder. Raises OSError."""
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


class RequestShape:
    """One request: lengths and sampling, never a prompt, a text or a token."""

    __slots__ = ("_document", "_number", "_shapes", "_tokens")

    def __init__(self, shapes: RequestShapes, number: int, document: dict[str, Any]) -> None:
        self._shapes = shapes
        self._number = number
        self._document = document
        self._tokens = 0

    def received(self, num_tokens: int) -> None:
        self._tokens += num_tokens
        self._shapes.count(self._number, self._tokens)

    def ended(self, how: str) -> None:
        """``how``: ``done``, ``left`` (the client disconnected), or the code of its error."""
        self._shapes.write(self._number, {**self._document, "ended": how})


class RequestShapes:
    """Shapes of one process's last requests. ``api``: cog or openai."""

    def __init__(self, api: str, path: Path | None = None) -> None:
        """Without a path, only this process can read them."""
        self._api = api
        self._memory = mmap.mmap(-1, _FILE_BYTES) if path is None else _map(path)
        self._counts = memoryview(self._memory)[:_COUNTS_BYTES].cast("Q")
        self._next = 0

    def begin(self, inputs: Mapping[str, Any]) -> RequestShape:
        """Keep a request by what is sent to the engine."""
        document = {"api": self._api, "inputs": shape_of(inputs), "started_s": time.time(), "ended": None}
        shape = RequestShape(self, self._next, document)
        self._next += 1
        self.write(self._next - 1, document)
        self.count(self._next - 1, 0)
        return shape

    def write(self, number: int, document: Mapping[str, Any]) -> None:
        if self._is_kept(number):
            start = _COUNTS_BYTES + number % KEPT * _SHAPE_BYTES
            text = msgspec.json.encode(document)[:_SHAPE_BYTES]
            self._memory[start : start + _SHAPE_BYTES] = text.ljust(_SHAPE_BYTES)

    def count(self, number: int, output_tokens: int) -> None:
        if self._is_kept(number):
            self._counts[number % KEPT] = output_tokens

    def _is_kept(self, number: int) -> bool:
        return self._next - number <= KEPT

    def read(self) -> list[dict[str, Any]]:
        return list(_read(self._memory[:]))


def read_shapes(path: Path) -> list[dict[str, Any]]:
    """Shapes of another process's requests; none if it has not begun."""
    try:
        return list(_read(path.read_bytes()))
    except FileNotFoundError:
        return []


def shape_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with lengths in place of tokens: numbers and booleans stay, all else is a size."""
    shape: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, (bool, int, float)):
            shape[name] = value
        else:
            shape[f"{name}_count"] = len(value) if hasattr(value, "__len__") else 1
    return shape


def _map(path: Path) -> mmap.mmap:
    """A new file of zeros; an older one is removed."""
    path.unlink(missing_ok=True)
    with path.open("xb+") as file:
        file.truncate(_FILE_BYTES)
        return mmap.mmap(file.fileno(), _FILE_BYTES)


def _read(data: bytes) -> Iterator[dict[str, Any]]:
    counts = memoryview(data)[:_COUNTS_BYTES].cast("Q")
    for place, output_tokens in enumerate(counts):
        start = _COUNTS_BYTES + place * _SHAPE_BYTES
        with suppress(msgspec.DecodeError):  # Nothing yet, or it is being written.
            yield {**msgspec.json.decode(data[start : start + _SHAPE_BYTES]), "output_tokens": output_tokens}
