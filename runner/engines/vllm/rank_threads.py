"""The threads that start vLLM's ranks last as long as their process.

NOTE: Linux sends the signal of ``die_with_parent`` when the thread that started the process ends. vLLM starts
the ranks of a machine in threads that end once all have started. A rank with a small configuration asks for
the signal later; one whose configuration does not fit into a pipe asks for it before, and would be killed.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import import_module
from typing import Any, ClassVar

from runner.engines.vllm.interface import RANKS_MODULE

_VARIABLE = "COG_TRITON_RANK_THREADS"


class _LastingThreads(ThreadPoolExecutor):
    _kept: ClassVar[list[ThreadPoolExecutor]] = []

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self._started: list[Future[Any]] = []

    def submit(self, *work: Any, **arguments: Any) -> Future[Any]:
        self._started.append(super().submit(*work, **arguments))
        return self._started[-1]

    def __exit__(self, *_: object) -> None:
        """Wait until all is done, and keep the threads."""
        wait(self._started)
        self._kept.append(self)


def announce(executor: type) -> None:
    """Have the core, which is spawned later, keep its threads if it has this executor."""
    if executor.__module__ == RANKS_MODULE:
        os.environ[_VARIABLE] = "1"


def keep_threads() -> None:
    """Keep the threads of this process, in which vLLM's executor may start ranks."""
    if _VARIABLE in os.environ:
        module: Any = import_module(RANKS_MODULE)
        module.ThreadPoolExecutor = _LastingThreads
