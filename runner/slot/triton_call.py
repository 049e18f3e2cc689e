"""A request that came through Triton: it is answered with Triton's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from runner.slot.call import Call, Outputs, Problem

_TYPES: Mapping[str, Any] = {
    "stream_id": np.int64,
    "finish_reason": object,
    "arrival_time_ns": np.int64,
    "last_token_time_ns": np.int64,
    "output_log_probs": np.float32,
    "cum_log_probs": np.float32,
    "top_log_probs": np.float32,
}
"""By output; those that are left out are 32-bit integers."""


class TritonCall(Call):
    """``sender`` is the request's response sender."""

    def __init__(self, sender: Any, request_id: str = "") -> None:
        super().__init__()
        self.request_id = request_id
        self._sender = sender

    def is_cancelled(self) -> bool:
        """NOTE: Triton frees the request with its last response, and crashes if it is asked afterwards."""
        with self._in_use:
            return self._running > 0 and bool(self._sender.is_cancelled())

    def _send(self, outputs: Outputs, error: Problem | None, *, is_last: bool) -> None:
        # NOTE: keep the tensors until the response is sent. Triton drops outputs that were not requested
        # without holding the GIL; if that were the last reference, Python 3.12 would crash.
        tensors = [
            pb_utils.Tensor(name, np.array(value, _TYPES.get(name, np.int32)))
            for name, value in outputs.items()
        ]
        response = pb_utils.InferenceResponse(tensors, None if error is None else _triton_error(error))
        if is_last:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            self._sender.send(response)


def _triton_error(error: Problem) -> Any:
    if error == "cancelled":
        return pb_utils.TritonError("cancelled by the client", pb_utils.TritonError.CANCELLED)
    return pb_utils.TritonError(str(error))
