"""The first exception that vLLM's processes log. The one that reaches the client only refers to the log.

The client makes a file in memory; the engine core and its workers, which vLLM spawns, find it by a variable.
"""

from __future__ import annotations

import logging
import os
from typing import Any

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


def write_root_cause() -> None:
    """Write exceptions to the client's file, too, in each process of vLLM.

    NOTE: not by a handler: vLLM's processes set up logging again when they start, which removes handlers.
    """
    if not (path := os.environ.get(_VARIABLE)):
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    make_record = logging.getLogRecordFactory()

    def make_and_write(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        if record.name.startswith("vllm.") and record.levelno >= logging.ERROR and record.exc_info:
            kind, error, _ = record.exc_info
            if kind is not None:
                os.write(descriptor, f"{kind.__name__}: {error}\0".encode())
        return record

    logging.setLogRecordFactory(make_and_write)
