"""The slot's connection to Triton's front: responses of its streams, past Triton, one frame per round."""

import logging
import socket
from pathlib import Path
from typing import Any

from runner.engines.protocol.triton_front import DirectResponse, DirectTensor
from runner.engines.protocol.wire import FrameQueue

_DATATYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}
"""Triton's types by numpy's name."""

log = logging.getLogger("cog_triton.slot")


class FrontLink:
    """A link that the relay's thread alone uses. It connects when it is needed, and again to the next front.

    Sending waits for a front that does not read: its supervisor ends such a front soon.
    """

    def __init__(self, path: Path, model_version: str) -> None:
        self._path = path
        self._model_version = model_version
        self._socket: socket.socket | None = None
        self._unsent = FrameQueue()

    def send(self, call: str, request_id: str, arrays: dict[str, Any]) -> bool:
        """Queue a response for ``flush``. Return False if there is no front."""
        if self._connected() is None:
            return False
        tensors = [
            DirectTensor(name, _DATATYPES[array.dtype.name], list(array.shape), array.tobytes())
            for name, array in arrays.items()
        ]
        self._unsent.add(DirectResponse(call, request_id, self._model_version, tensors))
        return True

    def flush(self) -> None:
        """Send what is unsent. Afterwards the front has it, or there is none."""
        while data := self._unsent.take():
            # NOTE: the end of a front is noticed only here, perhaps by the first responses for the next one.
            while (connection := self._connected()) is not None:
                try:
                    connection.sendall(data)
                    break
                except OSError as exc:
                    log.info("the front closed its connection: %s", exc)
                    connection.close()
                    self._socket = None

    def _connected(self) -> socket.socket | None:
        """Return the connection, a new one if there is none; None if there is no front."""
        if self._socket is None:
            connection = None
            try:
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(str(self._path))
            except OSError:  # There may be no descriptor left, too.
                if connection is not None:
                    connection.close()
                return None
            self._socket = connection
        return self._socket
