"""Removes the folders that Cog's server leaves behind, one for each prediction that it ever had.

Seen with Cog 0.23.1: before a prediction begins coglet makes ``/tmp/coglet/predictions/<id>`` with ``inputs``
and ``outputs``, for what is too large (6 MiB) for its line to the worker, and never removes them: on a disk
that ends with its inodes, on a tmpfs with the container's memory. Servers share that place, so each runner
removes what its own predictions left, some time after they ended, and only what is empty.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/tmp/coglet/predictions")  # noqa: S108 - where coglet makes them, whatever TMPDIR says
_PERIOD_S = 2.0
_PARTS = ("/inputs", "/outputs", "")


class CogFolders:
    """Is told of each prediction's end; ``open`` it in an event loop, and ``close`` it."""

    def __init__(self, root: Path = _ROOT, period_s: float = _PERIOD_S) -> None:
        self._root = root
        self._period_s = period_s
        self._ended: list[str] = []
        self._waiting: list[str] = []
        """Ended in the period before: whatever Cog still had to do with them is done."""
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._remove_again_and_again(), name="cog-folders")

    def ended(self, prediction_id: str) -> None:
        """A prediction has ended; from any thread."""
        # NOTE: an id is its caller's to choose; with a slash it leads to folders that may be anybody's.
        if prediction_id not in ("", ".", "..") and "/" not in prediction_id:
            self._ended.append(prediction_id)

    async def close(self) -> None:
        """Remove what is left; Cog has answered all its predictions, or is about to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._remove, [*self._waiting, *self._ended])

    async def _remove_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            old, self._waiting, self._ended = self._waiting, self._ended, []
            if old:
                await asyncio.to_thread(self._remove, old)

    def _remove(self, prediction_ids: Iterable[str]) -> None:
        for prediction_id in prediction_ids:
            for part in _PARTS:
                # A folder that is in use, gone already, or on a file system that fails, stays as it is.
                with suppress(OSError):
                    # Once for each prediction, thrice: pathlib takes longer than the system call.
                    os.rmdir(f"{self._root}/{prediction_id}{part}")  # noqa: PTH106
