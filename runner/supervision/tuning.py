"""Our use of Linux's scheduler, malloc, Python's garbage collector and tokio; see docs/measurements/."""

import ctypes
import gc
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress

_THRESHOLDS = (10_000, 2, 2)
"""A request makes hundreds of objects, and its end frees nearly all: collect after 10,000 new ones, not 700.
The older generations are collected after 2 steps: with Python's 10 the process holds 8 MiB more."""

TOKIO_THREADS = {"TOKIO_WORKER_THREADS": "1"}
"""Number of threads: two meet at coglet's slot locks in a burst, and one refuses a free slot (0.23.1)."""

_TUNABLES = "GLIBC_TUNABLES"
_THREAD_CACHES = "glibc.malloc.tcache_count"
_NO_THREAD_CACHES = f"{_THREAD_CACHES}=0"
"""Setting of malloc: caches of dozens of short-lived threads fragment the heap, so that processes grow."""


def tune_environment(environment: MutableMapping[str, str]) -> None:
    """Set variables for Cog's server and its children: malloc and tokio read them when a process starts."""
    for name, value in TOKIO_THREADS.items():
        environment.setdefault(name, value)
    tunables = environment.get(_TUNABLES, "")
    if _THREAD_CACHES not in tunables:
        environment[_TUNABLES] = ":".join(filter(None, [tunables, _NO_THREAD_CACHES]))


def restore_malloc(environment: MutableMapping[str, str]) -> None:
    """Undo ``tune_environment`` for the engine: its libraries allocate in threads that live long."""
    tunables = environment.pop(_TUNABLES, "").split(":")
    if kept := [each for each in tunables if each and each != _NO_THREAD_CACHES]:
        environment[_TUNABLES] = ":".join(kept)


def schedule_as_batch() -> None:
    """Tune this process's threads and those that they start; ``exec_with_parent`` undoes it for children.

    Cog's worker has hundreds of threads, of which one has Python's lock. By default a thread that wakes
    preempts the one that runs, finds the lock taken and sleeps again; under SCHED_BATCH it waits for its
    turn.
    """
    for thread_id in os.listdir("/proc/self/task"):  # noqa: PTH208 - numbers, not paths
        with suppress(OSError):  # The thread has ended, or a sandbox forbids it.
            os.sched_setscheduler(int(thread_id), os.SCHED_BATCH, os.sched_param(0))


def freeze_loaded_objects() -> None:
    """Spare collections the objects that setup loaded, which live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.collect()  # NOTE: the next full collection comes at 25 % more objects than this one finds: few.


def return_free_memory() -> None:
    """Return malloc's free pages to the kernel, which malloc does only at the end of its heap.

    Thousands of connections that end leave such pages between used ones. This takes 6 ms for 50 MiB of them.
    """
    with suppress(AttributeError):  # musl has none.
        ctypes.CDLL(None).malloc_trim(0)


def collect_rarely() -> None:
    gc.set_threshold(*_THRESHOLDS)


@contextmanager
def uncollected() -> Iterator[None]:
    """Provide a context without collections, which take a tenth of an engine's loading and free nothing.

    A process that is forked meanwhile does collect, else it never would: vLLM's engine core, if
    VLLM_WORKER_MULTIPROC_METHOD is ``fork``.
    """
    os.register_at_fork(after_in_child=gc.enable)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
