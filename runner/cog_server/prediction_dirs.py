"""Remove the folders that coglet leaves behind, one for each prediction that it ever had.

Before a prediction begins coglet makes ``/tmp/coglet/predictions/<id>`` with ``inputs`` and ``outputs``, for
values over 6 MiB, and never removes them: in time a disk runs out of inodes, or a tmpfs takes the container's
memory. Servers share that folder, so each runner removes the folders of its own predictions, some time after
they ended, and only empty ones.
NOTE: of a prediction that is cancelled in its first milliseconds the folder may stay: coglet ends its thread
at any step, also before a stream tells its end.
"""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runner.cog_server.coglet import PREDICTIONS_DIR

_PERIOD_S = 2.0
_PARTS = ("/inputs", "/outputs", "")


class PredictionDirs:
    """Call ``ended`` for each prediction; ``open`` it in an event loop, and ``close`` it."""

    def __init__(self, root: Path = PREDICTIONS_DIR, period_s: float = _PERIOD_S) -> None:
        self._root = root
        self._period_s = period_s
        self._ended: list[str] = []
        self._waiting: list[str] = []
        """Streams that ended in the period before: by now coglet has finished with them."""
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._remove_periodically(), name="prediction-dirs")

    def ended(self, prediction_id: str) -> None:
        """Note that a prediction has ended. May be called in any thread."""
        # NOTE: clients choose ids; with a slash one could name a folder of another program.
        if prediction_id not in ("", ".", "..") and "/" not in prediction_id:
            self._ended.append(prediction_id)

    async def close(self) -> None:
        """Remove what is left, once coglet has answered all predictions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._remove, [*self._waiting, *self._ended])

    async def _remove_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            old, self._waiting, self._ended = self._waiting, self._ended, []
            if old:
                await asyncio.to_thread(self._remove, old)

    def _remove(self, prediction_ids: Iterable[str]) -> None:
        for prediction_id in prediction_ids:
            for part in _PARTS:
                # A folder that is in use, already gone, or on a failing file system stays as it is.
                with suppress(OSError):
                    # Three times for each prediction: pathlib takes longer than the system call.
                    os.rmdir(f"{self._root}/{prediction_id}{part}")  # noqa: PTH106
