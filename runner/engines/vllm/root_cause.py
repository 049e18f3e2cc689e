"""The first exception that vLLM's processes log. The one that reaches the client only refers to the log.

The client makes a file in memory; the engine core and its workers, which vLLM spawns, find it by a variable.
"""

from __future__ import annotations

import logging
import os

_VARIABLE = "COG_TRITON_ROOT_CAUSE"
_MOST_BYTES = 2000


class RootCause:
    def __init__(self) -> None:
        self._descriptor = os.memfd_create("root-cause")
        self._cleared_bytes = 0
        os.environ[_VARIABLE] = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def first(self) -> str:
        """Return the first exception since ``clear``; empty if none was logged."""
        text = os.pread(self._descriptor, _MOST_BYTES, self._cleared_bytes).decode(errors="replace")
        return text.split("\0")[0]

    def clear(self) -> None:
        """Ignore the exceptions so far, after a successful start."""
        self._cleared_bytes = os.fstat(self._descriptor).st_size


class _Writer(logging.Handler):
    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            os.write(self._descriptor, f"{type(error).__name__}: {error}\0".encode())


def write_root_cause() -> None:
    """Write exceptions to the client's file, too, in each process of vLLM once its logging is set up."""
    if path := os.environ.get(_VARIABLE):
        logging.getLogger("vllm").addHandler(_Writer(path))
