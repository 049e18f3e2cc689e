"""The process of vLLM's engine core, which starts before vLLM is imported here.

vLLM spawns its core once it has its configuration. The core then imports vLLM, as this process did before:
two imports of many seconds, one after the other. Here its process imports at the same time as this one, while
the engine's files arrive, and then waits for its work.

NOTE: spawned, not forked: a core that is forked from a process with vLLM launches kernels more slowly.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from runner.engines.vllm.interface import CORE_MODULES, CORE_NAME, SETS_LIBRARY_PATH
from runner.supervision.tuning import uncollected

STARTS_EARLY = True
"""True to spawn the core early; False: vLLM spawns it."""


class CoreProcess(SpawnProcess):
    """A process that runs as soon as it is made. vLLM calls ``start``, which gives it the core's work."""

    _work: tuple[Any, dict[str, Any]]

    def __init__(self) -> None:
        receiver, sender = Pipe(duplex=False)
        super().__init__(target=_await_work, args=(receiver,), name=CORE_NAME)
        super().start()
        receiver.close()
        self._sender = sender

    def make(self, target: Any, name: str, kwargs: dict[str, Any]) -> SpawnProcess:
        """Return the process that vLLM asks for: this one, unless it has to be another."""
        is_bound = kwargs["vllm_config"].parallel_config.numa_bind
        if self._sender.closed or name != CORE_NAME or is_bound or kwargs["tensor_queue"] is not None:
            return SpawnProcess(target=target, name=name, kwargs=kwargs)
        self._work = target, kwargs
        return self

    def start(self) -> None:
        with self._sender, suppress(BrokenPipeError):  # It was killed, which vLLM notices.
            self._sender.send(dict(os.environ))
            self._sender.send(self._work)

    def release(self) -> None:
        """Let the process end, if it has no work."""
        self._sender.close()


def _await_work(receiver: Connection) -> None:
    # A failure shows when the work is received.
    with suppress(Exception), uncollected():
        for name in CORE_MODULES:
            importlib.import_module(name)
    try:
        environment = receiver.recv()
    except EOFError:
        return
    # NOTE: set only those that differ: setproctitle finds its place by variables that did not move.
    os.environ.update(environment.items() - os.environ.items())
    target, kwargs = receiver.recv()
    receiver.close()
    target(**kwargs)


_process: CoreProcess | None = None


def spawn_early() -> None:
    """Spawn the core. Call this before vLLM is imported, once the variables that it reads then are set."""
    global _process
    is_spawned = os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    if STARTS_EARLY and is_spawned and SETS_LIBRARY_PATH not in os.environ:
        _process = CoreProcess()


def release() -> None:
    """End the process that was spawned early, unless it is a core: vLLM spawns another."""
    global _process
    if _process is not None:
        _process.release()
        _process = None


@contextmanager
def becomes_core() -> Iterator[None]:
    """Provide vLLM with the process that was spawned early, if there is one, and release it in the end."""
    if _process is None:
        yield
        return
    from runner.engines.vllm.interface import utils

    context, vllms_own = SpawnContext(), utils.get_mp_context
    context.Process = _process.make  # type: ignore[assignment, misc]
    utils.get_mp_context = lambda: context
    try:
        yield
    finally:
        utils.get_mp_context = vllms_own
        release()
