"""The last requests of a process as shapes, in memory that may be a file, for the flight recorder to read.

The OpenAI-compatible API's process keeps its own in a file: so the recorder, in Cog's worker, has them at
once, whatever state that process is in. A shape has lengths and sampling, never a prompt, a text or a token.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

KEPT = 128
_SHAPE_BYTES = 4096
"""One shape as JSON takes a fourth of that."""
_COUNT_BYTES = 8
_COUNTS_BYTES = KEPT * _COUNT_BYTES
_FILE_BYTES = _COUNTS_BYTES + KEPT * _SHAPE_BYTES
_NOT_SHAPES = ("runner_seconds", "stream_id")


class RequestShape:
    """One request, as far as a recorder may know it; whoever serves it tells how it goes."""

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
        """``done``, ``left`` (whoever asked wanted no more), or the code of its error."""
        self._shapes.write(self._number, {**self._document, "ended": how})


class RequestShapes:
    """Those of one process. ``api`` is what its requests came through: cog or openai."""

    def __init__(self, api: str, path: Path | None = None) -> None:
        """Without a path, only this process can read them."""
        self._api = api
        self._memory = mmap.mmap(-1, _FILE_BYTES) if path is None else _map(path)
        self._counts = memoryview(self._memory)[:_COUNTS_BYTES].cast("Q")
        self._next = 0

    def begin(self, inputs: Mapping[str, Any]) -> RequestShape:
        """Remember a request by the tensors that the slot is sent."""
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
    """Those of another process; none if it has not begun."""
    try:
        return list(_read(path.read_bytes()))
    except FileNotFoundError:
        return []


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


def _map(path: Path) -> mmap.mmap:
    """A file of zeros in place of whatever was there."""
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
