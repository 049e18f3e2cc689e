"""Inference requests on their way to Triton: bounded, brought into the types of the model, cancelled.

All go by ``ModelStreamInfer``, which serves every model. With it Triton never loses the end of a stream.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from errors.triton import TritonUnavailable
from errors.triton_front import TooManyInferences
from runner.engines.protocol.triton_front import CALL, DIRECT, SINGLE_RESPONSE
from runner.triton_server.direct import IS_FINAL, DirectResponses
from runner.triton_server.front.answers import statuses_of
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.models import Models
from runner.triton_server.front.starts import CallStart, Starts
from runner.triton_server.front.stops import CallStops
from runner.triton_server.front.tensors import adapt
from runner.triton_server.grpc_client.call import TritonCall
from runner.triton_server.grpc_client.triton import Triton
from runner.triton_server.grpc_wire import OK, UNAVAILABLE, Headers
from runner.triton_server.model_names import SLOT

WANTS_FINAL = "triton_enable_empty_final_response"
_OWN_PARAMETERS = "cog_triton_"
ERROR = b"\x0a"
"""Beginning of an error response on the wire: the field ``error_message``."""
_IS_FINAL = IS_FINAL.encode() + b"\x12\x02\x08\x01"
"""Mark of a last response on the wire; a text may hold it too."""
_CONNECT_POLL_S = 0.1
_MAX_STARTS = 128
_MAX_LARGE_STARTS = 16
"""Limit of starts of requests above ``_LARGE_BYTES``: others don't wait for their tokenization."""
_LARGE_BYTES = 1 << 16
_START_S = 0.1
"""Time after which a request counts as begun: one that is not streamed has no response until its end."""
_MAX_READS = 32

log = logging.getLogger("cog_triton.triton_front")


class Inferences:
    """All calls that are in progress, at most ``max_requests``."""

    def __init__(
        self, triton: Triton, models: Models, budget: Budget, max_requests: int, *, is_managed: bool = False
    ) -> None:
        """Initialize. ``is_managed``: clients may register shared memory."""
        self.is_managed = is_managed
        self.triton = triton
        self.models = models
        self.budget = budget
        self.max_requests = max_requests
        self.running = 0
        self.direct: DirectResponses | None = None
        self.reads = Starts(_MAX_READS)
        """Calls that run nothing."""
        self._starts = Starts(_MAX_STARTS, _START_S)
        self._large_starts = Starts(_MAX_LARGE_STARTS, _START_S)
        self.stops = CallStops(triton, models)
        self._front = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Connect, and stop calls that another front left behind. Raises TritonUnavailable."""
        async with self._connecting:
            if not self.is_connected:
                await self.models.load()
                self.stops.keep_only(self._front)

    async def stay_connected(self) -> None:
        """Keep a connection open, so that no client waits for it."""
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

    def check_room(self, client: object | None) -> None:
        """Raise TooManyInferences (E1111) if no waiting request of a client with more can give way."""
        if self.running >= self.max_requests and not self._starts.make_room(client):
            raise TooManyInferences(running=self.running)

    def start(self, client: object, num_bytes: int, begin: Callable[[], None]) -> CallStart:
        """Call ``begin`` when Triton can take a request of ``num_bytes``."""
        return (self._starts if num_bytes <= _LARGE_BYTES else self._large_starts).add(client, begin)

    def next_key(self) -> str:
        return f"{self._front}:{next(self._numbers)}"


@dataclass(eq=False)
class Inference:
    """One request to Triton, by a call of its own. Results are given to callbacks.

    ``on_response`` takes a ``ModelStreamInferResponse`` on the wire; ``on_end`` a gRPC status and message.

    NOTE: Triton 2.51 aborts if a stream has requests for models that are decoupled and for others, or none.
    """

    inferences: Inferences
    client: object
    """Connection of the client."""
    key: str
    metadata: Headers
    on_response: Callable[[bytes], None]
    on_end: Callable[[int, str], None]
    is_single: bool = False
    """True if all outputs come in one response."""
    _running: int = 0
    _has_generation: bool = False
    _has_failed: bool = False
    _wants_final: bool = False
    _request_id: str = ""
    _is_cancelled: bool = False
    _call: TritonCall | None = None
    _start: CallStart | None = None

    def __post_init__(self) -> None:
        self._direct, self._share = self.inferences.direct, self.inferences.budget.share()

    def send(self, request: Any) -> None:
        """Send a ``ModelInferRequest``, which this changes. Raises E1103, E1107, E1108, E1111, E1112."""
        self.inferences.check_room(self.client)
        model = self.inferences.models.get(request.model_name, request.model_version)
        adapt(request, model, may_share=self.inferences.is_managed)
        self._has_generation = model.is_ensemble or model.name == SLOT
        for name in [each for each in request.parameters if each.startswith(_OWN_PARAMETERS)]:
            del request.parameters[name]
        request.parameters[CALL].string_param = self.key
        is_direct = self._direct is not None and request.model_name == SLOT and not self.is_single
        if is_direct:
            request.parameters[DIRECT].bool_param = True
        if self.is_single:
            request.parameters[SINGLE_RESPONSE].bool_param = True
        self._request_id = request.id
        self._wants_final = WANTS_FINAL in request.parameters and request.parameters[WANTS_FINAL].bool_param
        request.parameters[WANTS_FINAL].bool_param = True
        message = request.SerializeToString()
        self._share.hold(len(message))
        if self._direct is not None and is_direct:
            self._direct.calls[self.key] = self
        self._count(1)
        self._start = self.inferences.start(self.client, len(message), partial(self._begin, message))
        self._start.on_refusal = self._refuse

    def _begin(self, message: bytes) -> None:
        try:
            begin = self.inferences.triton.begin
            call = begin("ModelStreamInfer", self.metadata, self._received, self._ended)
        except CodedError as exc:
            asyncio.get_running_loop().call_soon(self._ended, statuses_of(exc)[1], str(exc))
            return
        self._call = call
        call.send(message, is_last=True)

    def _end_start(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            start.end()

    def _refuse(self) -> None:
        self._start = None
        text = str(TooManyInferences(running=self.inferences.running))
        self._received(error_response(text, self._request_id))
        self._ended(OK, "")

    def cancel(self) -> None:
        """Stop a request whose client has disconnected. What Triton has of it counts until it ends."""
        self._is_cancelled = True
        self._remove_direct()
        if self._call is None or not self.inferences.stops.can_stop:
            if self._call is not None:
                self._call.reset()
            self._end_start()
            self._count(-self._running)
            self._share.release()
            return
        if self._start is not None:
            self._start.is_cancelled = True
        self._call.stop_reading()
        self._stop()

    def _stop(self) -> None:
        # NOTE: Triton tells that an ensemble has failed, at a deadline say, while its steps go on.
        if self._has_generation and (self._running or self._has_failed):
            self.inferences.stops.add(self.key)

    def receive(self, message: bytes) -> None:
        """Take a response that the slot sent past Triton."""
        self._share.release()
        self._end_start()
        self.on_response(message)

    def responses_lost(self) -> None:
        self.cancel()
        self.on_end(UNAVAILABLE, str(TritonUnavailable(reason="responses of the model's process were lost")))

    def _remove_direct(self) -> None:
        if self._direct is not None:
            self._direct.calls.pop(self.key, None)

    def _received(self, message: bytes) -> None:
        self._share.release()
        self._end_start()
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
        self.on_response(message)

    def _ended(self, status: int, text: str) -> None:
        self._remove_direct()
        self._end_start()
        if not self._is_cancelled and self._call is not None:
            self._stop()
        if status == OK and self._running:
            status = UNAVAILABLE
            text = str(TritonUnavailable(reason="it ended the call without the last response"))
        self._count(-self._running)
        self._share.release()
        if not self._is_cancelled:
            self.on_end(status, text)

    def _count(self, change: int) -> None:
        self._running += change
        self.inferences.running += change


def error_response(text: str, request_id: str) -> bytes:
    """Write an error as Triton answers a request of a stream whose other requests go on."""
    error = pb.ModelStreamInferResponse(error_message=text)
    error.infer_response.id = request_id
    data: bytes = error.SerializeToString()
    return data


def has_ended(response: Any) -> bool:
    """Return True for a last ``ModelInferResponse``: marked so, or of a request that Triton did not begin."""
    return not response.parameters or response.parameters[IS_FINAL].bool_param
