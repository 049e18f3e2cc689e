"""The engine slot: the Triton Python model ``tensorrt_llm``, in front of the engine worker.

Triton's stub process holds this, the relay and the worker's socket, and nothing heavy. A request
becomes one stream per batch row; the worker's tokens go through the relay to the response sender.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from errors import find_in_text
from errors.base import CodedError
from errors.triton_arguments import InvalidTensor
from errors.triton_system import EngineFailed
from runner.engines.messages import (
    Cancel,
    Failed,
    Finished,
    FromWorker,
    Ready,
    Statistics,
    Submit,
    Tokens,
)
from runner.engines.process import EngineCommand, EngineProcess
from runner.relay import End, Relay, Stream
from runner.slot_metrics import SlotMetrics
from runner.slot_request import SlotRequest, Tensors, batch_size, parse_row

_CANCEL_POLL_S = 0.05
_CANCEL_DUTY = 5
"""Polling one stream costs Triton about 50 us; between two rounds at least this many rounds' time passes."""

log = logging.getLogger("cog_triton.slot")


class Generation:
    """One row of a Triton request, from submit to its last response."""

    __slots__ = ("batch_index", "call", "collected", "is_cancelled", "request", "request_id", "stream")

    def __init__(self, request_id: int, request: SlotRequest, call: Call, batch_index: int) -> None:
        self.request_id = request_id
        self.request = request
        self.call = call
        self.batch_index = batch_index
        self.stream = Stream(self._respond)
        self.collected = list(request.submit.input_ids) if request.includes_input else []
        self.is_cancelled = False

    def _respond(self, tokens: list[int], end: End | None) -> None:
        if self.request.is_streaming:
            self.call.respond(self.batch_index, tokens, end)
            return
        self.collected += tokens
        if end is not None:
            self.call.respond(self.batch_index, self.collected, end)


class Call:
    """One Triton request: its response sender and the rows still running."""

    def __init__(self, sender: Any, request_id: str, stream_ids: Any | None, rows: int) -> None:
        self.request_id = request_id
        self._sender = sender
        self._stream_ids = stream_ids
        self._rows = rows
        self._running = rows
        self._in_use = threading.Lock()
        """Held where the last response may go out, or must not."""

    def respond(self, batch_index: int, tokens: list[int], end: End | None) -> None:
        """Send one row's tokens; called from the relay's thread only (or before the row is fed to it)."""
        error = _error(end)
        # NOTE: held until sent. Triton drops outputs that nobody asked for without holding Python's lock: was
        # that their last reference, memory is freed behind Python's back (3.12 crashes at once).
        outputs = [] if error else self._outputs(batch_index, tokens, end)
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

    def _outputs(self, batch_index: int, tokens: list[int], end: End | None) -> list[Any]:
        outputs = [
            pb_utils.Tensor("output_ids", np.array([[tokens]], dtype=np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], dtype=np.int32)),
        ]
        if self._rows > 1:
            outputs.append(pb_utils.Tensor("batch_index", np.array([[batch_index]], dtype=np.int32)))
        if self._stream_ids is not None:
            outputs.append(pb_utils.Tensor("stream_id", self._stream_ids[batch_index : batch_index + 1]))
        if end is not None or self._stream_ids is not None:
            reason = str(end or "").encode()
            outputs.append(pb_utils.Tensor("finish_reason", np.array([[reason]], dtype=object)))
        return outputs


class TritonPythonModel:
    """What Triton's stub calls. ``initialize`` returns once the engine is loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(
            level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
        )
        parameters = _parameters(json.loads(args["model_config"]))
        self._includes_input = parameters.pop("exclude_input_in_output", "true") == "false"
        self._ids = itertools.count(1)
        self._running: dict[int, Generation] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Event()
        self._closed = False
        self._relay = Relay()
        self._metrics = SlotMetrics(pb_utils)
        self._engine = EngineProcess(_command(parameters), self)
        try:
            self._ready: Ready = self._engine.start()
        except CodedError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        log.info("engine ready: %s", self._ready)
        threading.Thread(target=self._watch, name="slot-watch", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._accept(request, sender)
            except CodedError as exc:
                _refuse(sender, exc)
            except Exception as exc:
                log.exception("request could not be read")
                _refuse(sender, InvalidTensor(name="request", expected="of the model's tensors", value=exc))

    def finalize(self) -> None:
        self._closed = True
        self._has_work.set()
        self._engine.stop()
        self._relay.close()

    # From Triton to the worker

    def _accept(self, request: Any, sender: Any) -> None:
        tensors: Tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "stop" in tensors and bool(tensors["stop"].reshape(-1)[0]):
            self._stop(request.request_id(), sender)
            return
        rows = batch_size(tensors)
        parsed = [
            parse_row(tensors, index, self._ready, includes_input=self._includes_input)
            for index in range(rows)
        ]
        call = Call(sender, request.request_id(), tensors.get("stream_id"), rows)
        for index, row in enumerate(parsed):
            self._submit(Generation(next(self._ids), row, call, index))

    def _submit(self, generation: Generation) -> None:
        with self._lock:
            self._running[generation.request_id] = generation
        self._metrics.submitted += 1
        self._has_work.set()
        message: Submit = msgspec.structs.replace(generation.request.submit, request_id=generation.request_id)
        try:
            self._engine.send(message)
        except CodedError as exc:
            self._end([(generation.request_id, exc)])

    def _stop(self, request_id: str, sender: Any) -> None:
        """NVIDIA's ``stop`` input: cancel the requests in flight of this id, answer with an empty response.

        Without a request in flight it asks nothing of the engine: the runner's health probe.
        """
        if not request_id:
            raise InvalidTensor(name="stop", expected="sent with a request id", value=True)
        with self._lock:
            targets = [each for each in self._running.values() if each.call.request_id == request_id]
        if not self._engine.is_ready:
            self._engine.send(Cancel(0))  # Raises E2107 with the reason.
        for generation in targets:
            self._cancel(generation)
        Call(sender, request_id, None, 1).respond(0, [], "stop")

    def _cancel(self, generation: Generation) -> None:
        if generation.is_cancelled:
            return
        generation.is_cancelled = True
        self._metrics.cancel_requests += 1
        try:
            self._engine.send(Cancel(generation.request_id))
        except CodedError:
            pass  # The worker is gone, and with it what the request held; lost() ends the request.

    # From the worker to Triton (reader thread)

    def received(self, messages: list[FromWorker]) -> None:
        """See ``runner.engines.process.Listener``: feed all of a batch to the relay at once."""
        feeds: list[tuple[Stream, list[int], End | None]] = []
        for message in messages:
            match message:
                case Tokens(new=new):
                    for request_id, tokens in new:
                        generation = self._running.get(request_id)
                        if generation is not None:
                            self._metrics.tokens += len(tokens)
                            feeds.append((generation.stream, tokens, None))
                case Finished(request_id=request_id, reason=reason):
                    feeds += self._ends([(request_id, reason)])
                case Failed(request_id=request_id, error=text):
                    feeds += self._ends([(request_id, _coded(text, self._ready.engine_kind))])
                case Statistics():
                    self._metrics.statistics = message
                case _:
                    log.error("unexpected message from the engine worker: %r", message)
        if feeds:
            self._relay.feed(feeds)

    def lost(self, error: CodedError) -> None:
        """See ``runner.engines.process.Listener``: all requests in flight end with the error."""
        log.error("%s", error)
        self._metrics.statistics = Statistics(active=0, queued=0)
        with self._lock:
            request_ids = list(self._running)
        self._end([(request_id, error) for request_id in request_ids])

    def _end(self, ends: list[tuple[int, End]]) -> None:
        self._relay.feed(self._ends(ends))

    def _ends(self, ends: list[tuple[int, End]]) -> list[tuple[Stream, list[int], End | None]]:
        feeds: list[tuple[Stream, list[int], End | None]] = []
        for request_id, end in ends:
            with self._lock:
                generation = self._running.pop(request_id, None)
            if generation is not None:
                self._metrics.ended(end)
                feeds.append((generation.stream, [], end))
        return feeds

    # Watching

    def _watch(self) -> None:
        """Find cancelled requests and publish metrics, as long as there is something to watch."""
        clock = threading.Event()
        while not self._closed:
            if not self._running:
                self._metrics.publish(self._engine.restarts)
                self._has_work.clear()
                if not self._running:
                    self._has_work.wait(1.0)
                    continue
            round_s = self._poll_cancellations()
            self._metrics.publish(self._engine.restarts, running=len(self._running))
            clock.wait(max(_CANCEL_POLL_S, _CANCEL_DUTY * round_s))

    def _poll_cancellations(self) -> float:
        """Ask Triton about each stream; returns the seconds it took."""
        start_s = time.perf_counter()
        with self._lock:
            running = list(self._running.values())
        for generation in running:
            if not generation.is_cancelled and generation.call.is_cancelled():
                self._cancel(generation)
        return time.perf_counter() - start_s


def _error(end: End | None) -> Any | None:
    if isinstance(end, CodedError):
        return pb_utils.TritonError(str(end))
    if end == "cancelled":
        return pb_utils.TritonError("cancelled by the client", pb_utils.TritonError.CANCELLED)
    return None


def _refuse(sender: Any, error: CodedError) -> None:
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _coded(text: str, engine_kind: str) -> CodedError:
    return find_in_text(text) or EngineFailed(engine_kind=engine_kind, reason=text)


def _parameters(model_config: dict[str, Any]) -> dict[str, str]:
    """The model's parameters that have a value."""
    pairs = ((key, value["string_value"]) for key, value in model_config["parameters"].items())
    return {key: value for key, value in pairs if value}


def _command(parameters: dict[str, str]) -> EngineCommand:
    return EngineCommand(
        python=parameters.pop("engine_python"),
        engine_kind=parameters.pop("engine_kind"),
        engine_dir=Path(parameters.pop("gpt_model_path")),
        start_timeout_s=float(parameters.pop("engine_start_timeout_s")),
        options=parameters,
    )
