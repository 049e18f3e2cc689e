"""The process of vLLM's engine core, which starts before vLLM is imported here.

vLLM spawns its core once it has its configuration. The core then imports vLLM, as this process did before:
two imports of many seconds, one after the other. Here its process imports at the same time as this one, while
the engine's files arrive, and then waits for its work. While it waits, it also inspects the model's class,
for which vLLM would start one more process that imports everything.

NOTE: spawned, not forked: a core that is forked from a process with vLLM launches kernels more slowly.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
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
        ours, theirs = Pipe()
        super().__init__(target=_await_work, args=(theirs,), name=CORE_NAME)
        super().start()
        theirs.close()
        self._connection = ours  # NOTE: set before, the process would hold both ends.

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function in the process and return its result; None if that failed."""
        from cloudpickle import dumps  # vLLM has it: the function is a lambda.

        try:
            self._connection.send_bytes(dumps(function))
            return self._connection.recv()
        except (EOFError, OSError):  # It has ended: vLLM spawns another core.
            self._connection.close()
            return None

    def make(self, target: Any, name: str, kwargs: dict[str, Any]) -> SpawnProcess:
        """Return the process that vLLM asks for: this one, unless it has to be another."""
        is_bound = kwargs["vllm_config"].parallel_config.numa_bind
        if self._connection.closed or name != CORE_NAME or is_bound or kwargs["tensor_queue"] is not None:
            return SpawnProcess(target=target, name=name, kwargs=kwargs)
        self._work = target, kwargs
        return self

    def start(self) -> None:
        with self._connection, suppress(OSError):  # It was killed, which vLLM notices.
            self._connection.send(dict(os.environ))
            self._connection.send(self._work)

    def release(self) -> None:
        """Let the process end, if it has no work."""
        self._connection.close()


def _await_work(connection: Connection) -> None:
    # A failure shows when the work is received.
    with suppress(Exception), uncollected():
        for name in CORE_MODULES:
            importlib.import_module(name)
    try:
        while callable(message := connection.recv()):
            connection.send(_result(message))
    except EOFError:
        return
    # NOTE: set only those that differ: setproctitle finds its place by variables that did not move.
    os.environ.update(message.items() - os.environ.items())
    target, kwargs = connection.recv()
    connection.close()
    target(**kwargs)


def _result(function: Callable[[], Any]) -> Any:
    with suppress(Exception):  # vLLM calls it again, in a process of its own, and reports what fails.
        from runner.engines.vllm.interface import plugins

        plugins.load_general_plugins()
        return function()


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
def inspects_models() -> Iterator[None]:
    """Have vLLM inspect models in the process that was spawned early, if there is one."""
    if (process := _process) is None:
        yield
        return
    from runner.engines.vllm.interface import registry

    vllms_own = registry._run_in_subprocess
    registry._run_in_subprocess = lambda fn: process.call(fn) or vllms_own(fn)
    try:
        yield
    finally:
        registry._run_in_subprocess = vllms_own


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
