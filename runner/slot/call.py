"""One request in the slot: its outputs, and the caller that they are sent to."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from errors.coded_error import CodedError
from errors.requests import InvalidTensor
from runner.engines.protocol.messages import TokenLogProb
from runner.slot.metrics import PhaseTimes
from runner.slot.relay import End, Stream
from runner.slot.request import SlotRequest

_NO_TOKEN = -1
"""Pads shorter beams, as in NVIDIA's backend."""
_MIN_LOG_PROB = -9999.0
"""In place of minus infinity, which JSON does not have."""

Place = tuple[int, int]
"""An output of a call: the row of the batch, and the number of the sequence within the row."""
_COMPLETED = ("end", "stop", "length")
Problem = CodedError | Literal["cancelled"]
"""Why an output ends without a result."""
Outputs = dict[str, list[Any]]
"""Output tensors by name, as nested lists."""
_NONE: Outputs = {}


class Call(ABC):
    """One request of a caller, with the number of outputs that are still running."""

    request_id = ""
    """The caller's own id; NVIDIA's ``stop`` input refers to it."""

    def __init__(self, rows: int = 1) -> None:
        self._stream_ids: Any | None = None
        self._rows = rows
        self._running = rows
        self._has_sequences = False
        self._in_use = threading.Lock()
        """Held while the last response may be sent, and while Triton is called."""

    def expect(self, rows: int, sequences: int, stream_ids: Any | None = None) -> None:
        """Called before the first response: ``sequences`` is the number of outputs of all ``rows``."""
        self._rows = rows
        self._running = sequences
        self._has_sequences = sequences > rows
        self._stream_ids = stream_ids

    def refuse(self, error: CodedError) -> None:
        """Send an error as the only response."""
        self._send({}, error, is_last=True)

    def respond(
        self,
        place: Place,
        tokens: list[int],
        end: End | None,
        beams: list[list[int]] | None = None,
        further: Outputs = _NONE,
    ) -> None:
        """Send new tokens of one output, or all ``beams`` of a beam search, and ``further`` outputs.

        Called only from the relay's thread, or before the output is fed to the relay.
        """
        error = _error(end)
        outputs: Outputs = {}
        if error is None:
            outputs = self._outputs(place, beams or [tokens], end)
            outputs |= further
        if end is None:
            self._send(outputs, None, is_last=False)
            return
        with self._in_use:
            self._running -= 1
            self._send(outputs, error, is_last=not self._running)

    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled; False after all outputs have ended."""

    @abstractmethod
    def _send(self, outputs: Outputs, error: Problem | None, *, is_last: bool) -> None:
        """Send one response; an error has no outputs."""

    def _outputs(self, place: Place, beams: list[list[int]], end: End | None) -> Outputs:
        batch_index, sequence_index = place
        lengths = [len(each) for each in beams]
        if len(beams) > 1:
            beams = [[*each, *[_NO_TOKEN] * (max(lengths) - len(each))] for each in beams]
        outputs: Outputs = {"output_ids": [beams], "sequence_length": [lengths]}
        if self._has_sequences:
            outputs["sequence_index"] = [[sequence_index]]
        if self._rows > 1:
            outputs["batch_index"] = [[batch_index]]
        if self._stream_ids is not None:
            outputs["stream_id"] = self._stream_ids[batch_index : batch_index + 1]
        if end is not None or self._stream_ids is not None:
            outputs["finish_reason"] = [[str(end or "").encode()]]
        return outputs


@dataclass(slots=True, eq=False)
class OutputSequence:
    """One output of a request, from its submission to the engine to its last response."""

    request_id: int
    request: SlotRequest
    call: Call
    place: Place
    phases: PhaseTimes
    arrival_s: float = field(default_factory=time.perf_counter)
    ended_s: float = 0.0
    """When the engine reported the end."""
    is_cancelled: bool = False
    beams: list[list[int]] = field(default_factory=list)
    """The outputs of a beam search, set before the end is fed to the relay."""
    log_probs: list[TokenLogProb] = field(default_factory=list)
    """Of tokens that were not sent yet, if the request asks for log probabilities."""
    total_log_prob: float = 0.0
    stream: Stream = field(init=False)
    collected: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(self._respond)
        self.collected = list(self.request.submit.input_ids) if self.request.includes_input else []

    def _respond(self, tokens: list[int], end: End | None) -> None:
        if not self.request.is_streaming:
            self.collected += tokens
            tokens = self.collected
        if end is None:
            if self.request.is_streaming:
                self.call.respond(self.place, tokens, None, further=self._take_log_probs(len(tokens)))
            return
        beams = [[*self.collected, *each] for each in self.beams[: self.request.num_sequences]]
        further = self._take_log_probs(len(self.log_probs))
        if self.request.returns_times:
            times_s = {"arrival_time_ns": self.arrival_s, "last_token_time_ns": self.ended_s}
            further = {name: [[int(each * 1e9)]] for name, each in times_s.items()} | further
        self.call.respond(self.place, tokens, end, beams, further)
        if end in _COMPLETED:
            self.phases.observe("engine", self.ended_s - self.arrival_s)
            self.phases.observe("relay", time.perf_counter() - self.ended_s)

    def _take_log_probs(self, count: int) -> Outputs:
        """Of the tokens of one response; ``cum_log_probs`` is the sum of all so far."""
        if not self.request.submit.wants_log_probs:
            return _NONE
        taken = self.log_probs[:count]
        del self.log_probs[:count]
        self.total_log_prob += sum(each.value for each in taken)
        values = [max(each.value, _MIN_LOG_PROB) for each in taken]
        outputs: Outputs = {"output_log_probs": [[values]], "cum_log_probs": [[self.total_log_prob]]}
        if num_top := self.request.submit.num_top_log_probs:
            # [1, tokens, num_top] each; padded with -1 where the engine has fewer.
            filler = [(_NO_TOKEN, _MIN_LOG_PROB)] * num_top
            rows = [[*each.top, *filler][:num_top] for each in taken]
            outputs["top_log_prob_ids"] = [[[token for token, _ in row] for row in rows]]
            outputs["top_log_probs"] = [[[max(value, _MIN_LOG_PROB) for _, value in row] for row in rows]]
        return outputs


def observe_runner(phases: PhaseTimes, seconds: Sequence[float]) -> None:
    """Record the time since the runner sent the request, its ``runner_seconds``. Raises E1103."""
    if not 0 <= seconds[0] < math.inf:
        raise InvalidTensor(name="runner_seconds", expected="of one number of at least 0", value=seconds)
    phases.observe("queue", max(time.perf_counter() - seconds[0], 0.0))


def _error(end: End | None) -> Problem | None:
    return end if isinstance(end, CodedError) or end == "cancelled" else None
