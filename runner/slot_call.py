"""One Triton request in the slot: its rows, and the response sender that they share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from errors.base import CodedError
from errors.triton_arguments import InvalidTensor
from runner.engines.messages import TokenLogProb
from runner.relay import End, Stream
from runner.slot_phases import PhaseTimes
from runner.slot_request import SlotRequest

_NO_TOKEN = -1
"""Fills the shorter beams' rows, as NVIDIA's backend does."""
_LEAST_LOG_PROB = -9999.0
"""For what can't be: JSON has no infinity."""


Place = tuple[int, int]
"""Of an output in its call: the row of the batch, and which of the row's sequences."""
_NO_TIMES: Mapping[str, int] = {}
_COMPLETED = ("end", "stop", "length")


class Call:
    """One Triton request: its response sender and the rows still running."""

    def __init__(
        self, sender: Any, request_id: str, stream_ids: Any | None, rows: int, sequences: int | None = None
    ) -> None:
        """``sequences``: how many outputs all rows have together, if not one each."""
        self.request_id = request_id
        self._sender = sender
        self._stream_ids = stream_ids
        self._rows = rows
        self._running = rows if sequences is None else sequences
        self._has_sequences = self._running > rows
        self._in_use = threading.Lock()
        """Held where the last response may go out, or must not."""

    def respond(
        self,
        place: Place,
        tokens: list[int],
        end: End | None,
        beams: list[list[int]] | None = None,
        times_ns: Mapping[str, int] = _NO_TIMES,
        log_probs: LogProbs | None = None,
    ) -> None:
        """Send new tokens of one output, or all ``beams`` of a beam search.

        Called from the relay's thread only (or before the row is fed to it). ``times_ns`` are further
        outputs by name.
        """
        error = _error(end)
        # NOTE: held until sent. Triton drops outputs that nobody asked for without holding Python's lock: was
        # that their last reference, memory is freed behind Python's back (3.12 crashes at once).
        outputs = [] if error else self._outputs(place, beams or [tokens], end)
        outputs += [
            pb_utils.Tensor(name, np.array([[time_ns]], np.int64)) for name, time_ns in times_ns.items()
        ]
        if log_probs is not None and not error:
            outputs += log_probs.outputs()
        response = pb_utils.InferenceResponse(outputs, error)
        if end is None:
            self._sender.send(response)
            return
        with self._in_use:
            self._running -= 1
            flags = 0 if self._running else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            self._sender.send(response, flags=flags)

    def is_cancelled(self) -> bool:
        """Ask Triton whether the client is gone; False once all rows have ended.

        NOTE: Triton frees what it would look at with the last response: asked later, it crashes.
        """
        with self._in_use:
            return self._running > 0 and bool(self._sender.is_cancelled())

    def _outputs(self, place: Place, beams: list[list[int]], end: End | None) -> list[Any]:
        batch_index, sequence_index = place
        lengths = [len(each) for each in beams]
        if len(beams) > 1:
            beams = [[*each, *[_NO_TOKEN] * (max(lengths) - len(each))] for each in beams]
        outputs = [
            pb_utils.Tensor("output_ids", np.array([beams], dtype=np.int32)),
            pb_utils.Tensor("sequence_length", np.array([lengths], dtype=np.int32)),
        ]
        if self._has_sequences:
            outputs.append(pb_utils.Tensor("sequence_index", np.array([[sequence_index]], dtype=np.int32)))
        if self._rows > 1:
            outputs.append(pb_utils.Tensor("batch_index", np.array([[batch_index]], dtype=np.int32)))
        if self._stream_ids is not None:
            outputs.append(pb_utils.Tensor("stream_id", self._stream_ids[batch_index : batch_index + 1]))
        if end is not None or self._stream_ids is not None:
            reason = str(end or "").encode()
            outputs.append(pb_utils.Tensor("finish_reason", np.array([[reason]], dtype=object)))
        return outputs


@dataclass(frozen=True)
class LogProbs:
    """Of the tokens of one response, and the sum of all so far."""

    values: list[TokenLogProb]
    total: float
    num_top: int

    def outputs(self) -> list[Any]:
        values = [max(each.value, _LEAST_LOG_PROB) for each in self.values]
        outputs = [
            pb_utils.Tensor("output_log_probs", np.array([[values]], dtype=np.float32)),
            pb_utils.Tensor("cum_log_probs", np.array([[self.total]], dtype=np.float32)),
        ]
        return outputs + self._top_outputs() if self.num_top else outputs

    def _top_outputs(self) -> list[Any]:
        """[1, tokens, num_top] each; where an engine has fewer, -1 fills up."""
        shape = (1, len(self.values), self.num_top)
        ids, values = np.full(shape, _NO_TOKEN, np.int32), np.full(shape, _LEAST_LOG_PROB, np.float32)
        for place, each in enumerate(self.values):
            for rank, (token, value) in enumerate(each.top[: self.num_top]):
                ids[0, place, rank] = token
                values[0, place, rank] = max(value, _LEAST_LOG_PROB)
        return [pb_utils.Tensor("top_log_prob_ids", ids), pb_utils.Tensor("top_log_probs", values)]


class Generation:
    """One output of a Triton request, from submit to its last response."""

    __slots__ = (
        "_phases",
        "arrival_s",
        "beams",
        "call",
        "collected",
        "ended_s",
        "is_cancelled",
        "log_probs",
        "place",
        "request",
        "request_id",
        "stream",
        "total_log_prob",
    )

    def __init__(
        self, request_id: int, request: SlotRequest, call: Call, place: Place, phases: PhaseTimes
    ) -> None:
        self.arrival_s = time.perf_counter()
        self.ended_s = 0.0
        """When the engine's last word was heard."""
        self._phases = phases
        self.request_id = request_id
        self.request = request
        self.call = call
        self.place = place
        self.stream = Stream(self._respond)
        self.collected = list(request.submit.input_ids) if request.includes_input else []
        self.is_cancelled = False
        self.beams: list[list[int]] = []
        """Of a beam search: set before its end is fed."""
        self.log_probs: list[TokenLogProb] = []
        """Of tokens not sent yet, where the request wants them."""
        self.total_log_prob = 0.0

    def _respond(self, tokens: list[int], end: End | None) -> None:
        if not self.request.is_streaming:
            self.collected += tokens
            tokens = self.collected
        if end is None:
            if self.request.is_streaming:
                self.call.respond(self.place, tokens, None, log_probs=self._take_log_probs(len(tokens)))
            return
        beams = [[*self.collected, *each] for each in self.beams[: self.request.num_sequences]]
        times_ns = self._times_ns() if self.request.returns_times and not _error(end) else _NO_TIMES
        log_probs = self._take_log_probs(len(self.log_probs))
        self.call.respond(self.place, tokens, end, beams, times_ns, log_probs)
        if end in _COMPLETED:
            self._phases.observe("engine", self.ended_s - self.arrival_s)
            self._phases.observe("relay", time.perf_counter() - self.ended_s)

    def _take_log_probs(self, count: int) -> LogProbs | None:
        if not self.request.submit.wants_log_probs:
            return None
        values = self.log_probs[:count]
        del self.log_probs[:count]
        self.total_log_prob += sum(each.value for each in values)
        return LogProbs(values, self.total_log_prob, self.request.submit.num_top_log_probs)

    def _times_ns(self) -> dict[str, int]:
        return {"arrival_time_ns": int(self.arrival_s * 1e9), "last_token_time_ns": int(self.ended_s * 1e9)}


def observe_runner(phases: PhaseTimes, seconds: Sequence[float]) -> None:
    """Take what our runner tells with a request in ``runner_seconds``: when it sent it. Raises E1103."""
    if not 0 <= seconds[0] < math.inf:
        raise InvalidTensor(name="runner_seconds", expected="of one number of at least 0", value=seconds)
    phases.observe("queue", max(time.perf_counter() - seconds[0], 0.0))


def _error(end: End | None) -> Any | None:
    if isinstance(end, CodedError):
        return pb_utils.TritonError(str(end))
    if end == "cancelled":
        return pb_utils.TritonError("cancelled by the client", pb_utils.TritonError.CANCELLED)
    return None
