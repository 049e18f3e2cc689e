"""How much time and memory an input may take."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_S = 5.0
"""Limit of processor time in s: inputs take milliseconds."""
_MEMORY_BYTES = 1 << 20
_MEMORY_TIMES = 40
"""So many bytes for each byte of the input, and ``_MEMORY_BYTES``."""


@contextmanager
def bounded(num_bytes: int) -> Iterator[None]:
    """Check what is done with an input of so many bytes. Memory: Python's objects and numpy's arrays."""
    tracemalloc.start()
    start_s = time.process_time()
    try:
        yield
        took_s = time.process_time() - start_s
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took_s < _MOST_S, f"it took {took_s:.1f} s"
    assert peak_bytes < _MEMORY_BYTES + _MEMORY_TIMES * num_bytes, f"it took {peak_bytes} bytes"
