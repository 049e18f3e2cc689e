"""Cancellation in the slot of calls whose clients have disconnected.

Triton does not cancel the steps of an ensemble (server#7077), and 2.51 crashes at some calls that are reset.
"""

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from runner.engines.protocol.triton_front import ONLY_FRONT, STOPPED_CALL
from runner.triton_server.front.models import Models
from runner.triton_server.grpc_client.triton import Triton
from runner.triton_server.model_names import SLOT

_MAX_CALLS = 256
"""Number of calls that one request to the slot stops."""


class CallStops:
    def __init__(self, triton: Triton, models: Models) -> None:
        self._triton = triton
        self._models = models
        self._unsent: list[str] = []
        self._is_sending = False

    @property
    def can_stop(self) -> bool:
        """NVIDIA's C++ backend stops a call only if it is reset."""
        slot = self._models.find(SLOT)
        return slot is None or slot.is_python

    def keep_only(self, front: str) -> None:
        """Stop the calls that other fronts left behind."""
        self._send(ONLY_FRONT, front)

    def add(self, call: str) -> None:
        """Stop a call. Of many that end at once, a request to the slot stops all that ended meanwhile."""
        self._unsent.append(call)
        if not self._is_sending:
            self._send_next()

    def _send_next(self) -> None:
        calls, self._unsent = self._unsent[:_MAX_CALLS], self._unsent[_MAX_CALLS:]
        self._is_sending = bool(calls) and self._send(STOPPED_CALL, " ".join(calls))

    def _send(self, parameter: str, value: str) -> bool:
        """Send a parameter to the slot. Return False if nothing can run there."""
        if self._models.find(SLOT) is None or not self.can_stop or not self._triton.is_connected:
            return False
        request = pb.ModelInferRequest(model_name=SLOT, id="front")
        request.parameters[parameter].string_param = value
        one = np.int32(1).tobytes()
        for name, datatype, raw in (
            ("stop", "BOOL", b"\x01"),
            ("input_ids", "INT32", one),
            ("input_lengths", "INT32", one),
            ("request_output_len", "INT32", one),
        ):
            request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
            request.raw_input_contents.append(raw)
        call = self._triton.begin(
            "ModelStreamInfer", [], lambda message: None, lambda status, text: self._send_next()
        )
        call.send(request.SerializeToString(), is_last=True)
        return True
