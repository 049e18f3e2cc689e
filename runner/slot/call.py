"""A request of a Triton client: its outputs, and the responses that they are sent in."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from errors.coded_error import CodedError
from errors.triton import TritonUnavailable
from runner.engines.protocol.messages import MIN_LOG_PROB, TokenLogProb
from runner.engines.protocol.relay import End, Stream
from runner.slot.front_link import FrontLink
from runner.slot.request import SlotRequest

NO_TOKEN = -1
"""Padding: it follows shorter beams, as in NVIDIA's backend, and replaces the prompt's ids in a stream."""
_TYPES: Mapping[str, Any] = {
    "stream_id": np.int64,
    "finish_reason": object,
    "arrival_time_ns": np.int64,
    "last_token_time_ns": np.int64,
    "output_log_probs": np.float32,
    "cum_log_probs": np.float32,
    "top_log_probs": np.float32,
}
"""Types by output; others are 32-bit integers."""
_OF_ONE_SEQUENCE = {"batch_index", "sequence_index", "stream_id"}
"""Outputs that say of which sequence the others are: not sent for several together."""

Place = tuple[int, int]
"""An output of a call: the row of the batch, and the number of the sequence within the row."""
Outputs = dict[str, Any]
"""Output tensors by name, as nested lists or arrays."""


class Call:
    """One request of a client, with the number of outputs that are still running.

    ``sender`` is Triton's response sender. ``request_id`` is the client's own, which NVIDIA's ``stop`` input
    refers to. ``is_single``: all outputs are sent in a single response. ``on_lost`` is called when one could
    not be sent: the client gets an error at the ends of the outputs.
    """

    def __init__(
        self,
        sender: Any,
        request_id: str = "",
        *,
        is_single: bool = False,
        on_lost: Callable[["Call"], None] = lambda call: None,
    ) -> None:
        self.request_id = request_id
        self._on_lost = on_lost
        self.is_single = is_single
        self._is_stopped = False
        self.front_call = ""
        """The call of Triton's front that this belongs to."""
        self._link: FrontLink | None = None
        self._requested: frozenset[str] = frozenset()
        self._sender = sender
        self._stream_ids: Any | None = None
        self._rows = 1
        self._running = 1
        self._has_sequences = False
        self._parts: dict[Place, Outputs] = {}
        """Parts of the outputs that have ended, with ``is_single``."""
        self._error: Any | None = None
        """Error of the first output that failed, with ``is_single``; of a response that could not be sent."""
        self._in_use = threading.Lock()
        """Held while the last response may be sent, and while Triton is called."""

    def expect(self, rows: int, sequences: int, stream_ids: Any | None = None) -> None:
        """Prepare for the first response: ``sequences`` is the number of outputs of all ``rows``."""
        self._rows = rows
        self._running = sequences
        self._has_sequences = sequences > rows
        self._stream_ids = stream_ids

    def answer_directly(self, link: FrontLink, requested: Iterable[str]) -> None:
        """Send all responses but the last past Triton; ``requested``: names of outputs, none for all."""
        self._link = link
        self._requested = frozenset(requested)

    def reject(self, end: End) -> None:
        """Send an error, or ``cancelled``, as the only response."""
        self._send({}, _triton_error(end), is_last=True)

    def confirm(self) -> None:
        """Answer a request that stops others. As in NVIDIA's backend, the response has no tokens."""
        self._send({"finish_reason": [[b"stop"]]}, None, is_last=True)

    def respond(self, place: Place, sequences: list[list[int]], end: End | None, further: Outputs) -> None:
        """Send the new tokens of one output, or all ``sequences`` of a beam search, and ``further`` outputs.

        Called only from the relay's thread, or before the output is fed to the relay.
        """
        error = None if end is None or (end == "cancelled" and self._is_stopped) else _triton_error(end)
        if not self.is_single and self._error is not None:
            if end is None:
                return
            error = self._error
        outputs: Outputs = {}
        if error is None:
            outputs = self._outputs(place, sequences, end)
            outputs |= further
        if end is None:
            if self._link is None or not self._send_directly(self._link, outputs):
                self._send(outputs, None, is_last=False)
            return
        if self._link is not None:
            self._link.flush()
        with self._in_use:
            self._running -= 1
            if not self.is_single:
                self._send(outputs, error, is_last=not self._running)
                return
            self._error = self._error or error
            self._parts[place] = outputs
            if not self._running:
                merged = {} if self._error else _merge(self._parts, self._rows)
                if self._stream_ids is not None and merged:
                    merged["stream_id"] = self._stream_ids
                self._send(merged, self._error, is_last=True)

    def stop(self, *, is_meant: bool) -> bool:
        """Note that the request is stopped if it ``is_meant``, and return that. Its results are no error.

        NOTE: Triton 2.51 never frees an ensemble's request that fails while another of its steps runs.
        """
        self._is_stopped = self._is_stopped or is_meant
        return is_meant

    def _outputs(self, place: Place, sequences: list[list[int]], end: End | None) -> Outputs:
        batch_index, sequence_index = place
        lengths = [len(each) for each in sequences]
        if len(sequences) > 1:
            sequences = [[*each, *[NO_TOKEN] * (max(lengths) - len(each))] for each in sequences]
        outputs: Outputs = {"output_ids": [sequences], "sequence_length": [lengths]}
        if self._has_sequences:
            outputs["sequence_index"] = [[sequence_index]]
        if self._rows > 1:
            outputs["batch_index"] = [[batch_index]]
        if self._stream_ids is not None:
            outputs["stream_id"] = self._stream_ids[batch_index : batch_index + 1]
        if end is not None:
            outputs["finish_reason"] = [[str(end).encode()]]
        return outputs

    def _send_directly(self, link: FrontLink, outputs: Outputs) -> bool:
        arrays = {
            name: np.array(value, _TYPES.get(name, np.int32))
            for name, value in outputs.items()
            if not self._requested or name in self._requested
        }
        return link.send(self.front_call, self.request_id, arrays)

    def _send(self, outputs: Outputs, error: Any | None, *, is_last: bool) -> None:
        # NOTE: keep the tensors until the response is sent. Triton drops outputs that were not requested
        # without holding the GIL; if that were the last reference, Python 3.12 would crash.
        tensors = [
            pb_utils.Tensor(name, np.array(value, _TYPES.get(name, np.int32)))
            for name, value in outputs.items()
        ]
        response = pb_utils.InferenceResponse(tensors, error)
        if is_last:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        try:
            self._sender.send(response)
        except Exception:
            # NOTE: Triton's library waits for a lock of its shared memory for a second only.
            self._error = _triton_error(TritonUnavailable(reason="it did not take a response"))
            self._on_lost(self)
            raise


def _merge(parts: Mapping[Place, Outputs], rows: int) -> Outputs:
    """Merge the outputs of several sequences, as many in each row: [rows, sequences, ...], padded with -1."""
    in_order = [parts[place] for place in sorted(parts)]
    if len(in_order) == 1:
        return in_order[0]
    merged: Outputs = {}
    for name in in_order[0].keys() - _OF_ONE_SEQUENCE:
        arrays = [np.array(outputs[name][0], _TYPES.get(name, np.int32)) for outputs in in_order]
        padded = np.full((len(arrays), *np.max([each.shape for each in arrays], axis=0)), -1, arrays[0].dtype)
        for row, array in zip(padded, arrays, strict=True):
            row[tuple(slice(length) for length in array.shape)] = array
        merged[name] = padded.reshape(rows, -1, *padded.shape[2:])
    return merged


def _triton_error(end: End) -> Any | None:
    """Return the error; None for an output that ended with a result."""
    if end == "cancelled":
        return pb_utils.TritonError("cancelled by the client", pb_utils.TritonError.CANCELLED)
    return pb_utils.TritonError(str(end)) if isinstance(end, CodedError) else None


@dataclass(slots=True, eq=False)
class OutputSequence:
    """One output of a request, from its submission to the engine server to its last response."""

    request_id: int
    request: SlotRequest
    call: Call
    place: Place
    is_cancelled: bool = False
    sequences: list[list[int]] = field(default_factory=list)
    """Results of a beam search; with ``times_s`` set before the end is fed to the relay."""
    times_s: tuple[float, float] | None = None
    """See ``Finished``."""
    log_probs: list[TokenLogProb] = field(default_factory=list)
    """Log probabilities of tokens that were not sent yet, if the request asks for them."""
    total_log_prob: float = 0.0
    stream: Stream = field(init=False)
    collected: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(self._respond)
        self.collected = list(self.request.submit.input_ids) if self.request.includes_input else []

    def _respond(self, tokens: list[int], end: End | None) -> None:
        if not self.request.is_streaming:
            self.collected += tokens
            if end is None:
                return
            tokens = self.collected
        further = self._take_log_probs(len(tokens) if end is None else len(self.log_probs))
        if self.times_s is not None:
            names = ("arrival_time_ns", "last_token_time_ns")
            further |= {name: [[int(each * 1e9)]] for name, each in zip(names, self.times_s, strict=True)}
        beams = [[*self.collected, *each] for each in self.sequences[: self.request.num_sequences]]
        self.call.respond(self.place, beams or [tokens], end, further)

    def _take_log_probs(self, count: int) -> Outputs:
        """Take those of the tokens of one response; ``cum_log_probs`` is the sum of all so far."""
        if not self.request.submit.wants_log_probs:
            return {}
        taken = self.log_probs[:count]
        del self.log_probs[:count]
        values = [each.value for each in taken]
        self.total_log_prob += sum(values)
        outputs: Outputs = {"output_log_probs": [[values]], "cum_log_probs": [[self.total_log_prob]]}
        if num_top := self.request.submit.num_top_log_probs:
            # [1, tokens, num_top] each; padded with -1 where the engine has fewer.
            filler = [(NO_TOKEN, MIN_LOG_PROB)] * num_top
            rows = [[*each.top, *filler][:num_top] for each in taken]
            outputs["top_log_prob_ids"] = [[[token for token, _ in row] for row in rows]]
            outputs["top_log_probs"] = [[[value for _, value in row] for row in rows]]
        return outputs
