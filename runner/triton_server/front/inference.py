"""Inference requests on their way to Triton: bounded, brought into the types of the model, cancelled.

All go by ``ModelStreamInfer``, which serves every model, and by which Triton never loses the end of a stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from errors.triton import TritonUnavailable
from errors.triton_front import TooManyBytes, TooManyInferences
from runner.engines.protocol.front import CALL, DIRECT, ONLY_FRONT, SINGLE_RESPONSE, STOPPED_CALL
from runner.triton_server.direct import IS_FINAL, DirectResponses
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.models import Models
from runner.triton_server.front.tensors import adapt
from runner.triton_server.grpc_client.call import Call
from runner.triton_server.grpc_client.triton import Triton
from runner.triton_server.grpc_wire import UNAVAILABLE, Headers
from runner.triton_server.model_names import SLOT

WANTS_FINAL = "triton_enable_empty_final_response"
_OWN_PARAMETERS = "cog_triton_"
ERROR = b"\x0a"
"""How a response begins on the wire if it is an error: with the field ``error_message``."""
_IS_FINAL = IS_FINAL.encode() + b"\x12\x02\x08\x01"
"""How a last response is marked, on the wire; a text may hold it too."""
_CONNECT_POLL_S = 0.1

log = logging.getLogger("cog_triton.triton_front")


class Inferences:
    """All calls that are in progress, at most ``max_requests``."""

    def __init__(self, triton: Triton, models: Models, budget: Budget, max_requests: int) -> None:
        self.triton = triton
        self.models = models
        self.budget = budget
        self.max_requests = max_requests
        self.running = 0
        self.direct: DirectResponses | None = None
        self._front = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Raises TritonUnavailable. Calls that another front left behind are stopped."""
        async with self._connecting:
            if not self.is_connected:
                await self.models.load()
                self._stop(ONLY_FRONT, self._front)

    async def stay_connected(self) -> None:
        """So that no client waits for it."""
        while True:
            try:
                await self.connect()
            except TritonUnavailable:
                pass  # Tried again.
            except Exception:
                log.exception("Triton's models could not be read")
            await asyncio.sleep(_CONNECT_POLL_S)

    @property
    def is_connected(self) -> bool:
        return self.triton.is_connected and self.models.are_loaded

    def check_room(self) -> None:
        """Raises TooManyInferences (E1111)."""
        if self.running >= self.max_requests:
            raise TooManyInferences(running=self.running)

    def next_key(self) -> str:
        return f"{self._front}:{next(self._numbers)}"

    @property
    def can_stop(self) -> bool:
        """NVIDIA's C++ backend stops a call only if it is reset."""
        slot = self.models.find(SLOT)
        return slot is None or slot.is_python

    def stop_call(self, key: str) -> None:
        """Stop what runs for a call: Triton does not cancel the steps of an ensemble (server#7077)."""
        self._stop(STOPPED_CALL, key)

    def _stop(self, parameter: str, value: str) -> None:
        if self.models.find(SLOT) is None or not self.can_stop or not self.triton.is_connected:
            return
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
        call = self.triton.begin("ModelStreamInfer", [], lambda message: None, lambda status, text: None)
        call.send(request.SerializeToString(), is_last=True)


class Inference:
    """One request to Triton, by a call of its own. Results are given to callbacks.

    ``on_response`` takes a ``ModelStreamInferResponse`` on the wire; ``on_end`` a gRPC status and message.

    NOTE: Triton 2.51 aborts if a stream has requests for models that are decoupled and for others, or none.
    """

    def __init__(
        self,
        all_inferences: Inferences,
        key: str,
        metadata: Headers,
        on_response: Callable[[bytes], None],
        on_end: Callable[[int, str], None],
        *,
        is_single: bool = False,
    ) -> None:
        """``is_single``: the client gets all outputs in one response."""
        self._is_single = is_single
        self._all = all_inferences
        self._direct = all_inferences.direct
        self._metadata = metadata
        self._key = key
        self._on_response = on_response
        self._on_end = on_end
        self._running = 0
        self._has_generation = False
        self._has_failed = False
        self._wants_final = False
        self._is_left = False
        self._unanswered_bytes = 0
        self._share = all_inferences.budget.share()
        self._call: Call | None = None

    def send(self, request: Any) -> None:
        """Send a ``ModelInferRequest``, which this changes. Raises E1103, E1107, E1111, TritonUnavailable."""
        self._all.check_room()
        model = self._all.models.find(request.model_name)
        if model is not None:
            adapt(request, model)
            self._has_generation = self._has_generation or model.is_ensemble or model.name == SLOT
        for name in [each for each in request.parameters if each.startswith(_OWN_PARAMETERS)]:
            del request.parameters[name]
        request.parameters[CALL].string_param = self._key
        is_direct = self._direct is not None and request.model_name == SLOT and not self._is_single
        if is_direct:
            request.parameters[DIRECT].bool_param = True
        if self._is_single:
            request.parameters[SINGLE_RESPONSE].bool_param = True
        self._wants_final = WANTS_FINAL in request.parameters and request.parameters[WANTS_FINAL].bool_param
        request.parameters[WANTS_FINAL].bool_param = True
        message = request.SerializeToString()
        call = self._all.triton.begin("ModelStreamInfer", self._metadata, self._received, self._ended)
        self._call = call
        if self._direct is not None and is_direct:
            self._direct.calls[self._key] = self
        self._count(1)
        self._unanswered_bytes = len(message)
        call.send(message, is_last=True)

    def cancel(self) -> None:
        """The client has disconnected, or can't be answered. What Triton has of it counts until it ends."""
        self._is_left = True
        self._forget_direct()
        if self._call is None:
            return
        if not self._all.can_stop:
            self._call.reset()
            self._count(-self._running)
            return
        with suppress(TooManyBytes):
            self._share.hold(self._unanswered_bytes)
        self._call.leave()
        self._stop()

    def _stop(self) -> None:
        # NOTE: Triton tells that an ensemble has failed, at a deadline say, while its steps go on.
        if self._has_generation and (self._running or self._has_failed):
            self._all.stop_call(self._key)

    def receive(self, message: bytes) -> None:
        """Of the slot, past Triton."""
        self._unanswered_bytes = 0
        self._on_response(message)

    def lose(self) -> None:
        self.cancel()
        self._on_end(UNAVAILABLE, str(TritonUnavailable(reason="the model's process closed its connection")))

    def _forget_direct(self) -> None:
        if self._direct is not None:
            self._direct.calls.pop(self._key, None)

    def _received(self, message: bytes) -> None:
        self._unanswered_bytes = 0
        is_error = message.startswith(ERROR)
        if is_error or _IS_FINAL in message:
            self._has_failed = self._has_failed or is_error
            response = pb.ModelStreamInferResponse.FromString(message).infer_response
            is_final = has_ended(response)
            if is_final and self._direct is not None:
                self._direct.drain()
            if is_final:
                self._count(-min(self._running, 1))
            if is_final and not is_error and not self._wants_final and not response.outputs:
                return
        self._on_response(message)

    def _ended(self, status: int, text: str) -> None:
        self._forget_direct()
        if not self._is_left:
            self._stop()
        self._count(-self._running)
        self._share.release()
        if not self._is_left:
            self._on_end(status, text)

    def _count(self, change: int) -> None:
        self._running += change
        self._all.running += change


def has_ended(response: Any) -> bool:
    """Whether a ``ModelInferResponse`` is the last: marked so, or of a request that Triton did not begin."""
    return not response.parameters or response.parameters[IS_FINAL].bool_param
