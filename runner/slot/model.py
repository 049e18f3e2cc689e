"""The slot: the Triton Python model ``tensorrt_llm``, in front of the engine worker.

It runs in Triton's stub process with the relay and the worker's socket. A request becomes one or more output
sequences; the relay sends the worker's tokens of each to Triton's response sender.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import triton_python_backend_utils as pb_utils

from engine.kinds import supports
from errors.coded_error import CodedError
from errors.requests import InvalidTensor
from runner.engines.protocol.arrival import PARAMETER
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    FromWorker,
    LogProbs,
    Ready,
    Statistics,
    Submit,
    Tokens,
)
from runner.engines.worker.command import EngineCommand
from runner.engines.worker.process import EngineProcess
from runner.observability.logs import set_up_logging
from runner.slot.call import Call, OutputSequence, observe_runner
from runner.slot.metrics import SlotMetrics
from runner.slot.relay import End, Relay, Stream
from runner.slot.request import parse_row
from runner.slot.server import SlotSocket
from runner.slot.tensors import Tensors, batch_size
from runner.slot.triton_call import TritonCall

_CANCEL_POLL_S = 0.05
_CANCEL_DUTY = 20
"""Polling one stream costs Triton about 50 us. Rounds are at least this many durations apart."""

log = logging.getLogger("cog_triton.slot")


class TritonPythonModel:
    """Triton's interface of a Python model. ``initialize`` returns when the engine is loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        set_up_logging()
        model_config = json.loads(args["model_config"])
        parameters = _parameters(model_config)
        self._includes_input = parameters.pop("exclude_input_in_output", "true") == "false"
        self._ids = itertools.count(1)
        self._running: dict[int, OutputSequence] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Event()
        self._closed = False
        self._socket: SlotSocket | None = None
        socket_path = parameters.pop("socket_path", "")
        self._relay = Relay(self._after_round)
        self._metrics = SlotMetrics(pb_utils)
        queue_policy = model_config.get("dynamic_batching", {}).get("default_queue_policy", {})
        if supports(parameters["engine_kind"], "max_queue_size"):
            parameters["max_queue_size"] = str(queue_policy.get("max_queue_size", 0))
        cancel_poll_ms = parameters.pop("cancellation_check_period_ms", "")
        self._cancel_poll_s = float(cancel_poll_ms) / 1000 if cancel_poll_ms else _CANCEL_POLL_S
        if supports(parameters["engine_kind"], "iteration_metrics"):
            self._metrics.add_iteration({"model": args["model_name"], "version": args["model_version"]})
        self._engine = EngineProcess(_command(parameters), self)
        try:
            self._ready: Ready = self._engine.start()
        except CodedError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        if socket_path:
            self._socket = SlotSocket(Path(socket_path), self._begin, self._cancel_call)
        log.info("engine ready: %s", self._ready)
        threading.Thread(target=self._watch, name="slot-watch", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            call = TritonCall(request.get_response_sender(), request.request_id())
            self._begin(partial(_tensors, request), call)

    def finalize(self) -> None:
        self._closed = True
        self._has_work.set()
        self._engine.stop()
        self._relay.close()
        if self._socket is not None:
            self._socket.close()

    # Requests: from Triton or the slot's socket to the worker

    def _begin(self, read: Callable[[], Tensors], call: Call) -> None:
        try:
            self._accept(read(), call)
        except CodedError as exc:
            call.refuse(exc)
        except Exception as exc:
            log.exception("request could not be read", extra={"fields": {"request_ids": [call.request_id]}})
            call.refuse(InvalidTensor(name="request", expected="of the model's tensors", value=exc))

    def _accept(self, tensors: Tensors, call: Call) -> None:
        if "stop" in tensors and bool(tensors["stop"].reshape(-1)[0]):
            self._stop(call)
            return
        rows = batch_size(tensors)
        parsed = [
            parse_row(tensors, index, self._ready, includes_input=self._includes_input)
            for index in range(rows)
        ]
        if "runner_seconds" in tensors:
            observe_runner(self._metrics.phases, tensors["runner_seconds"].reshape(-1).tolist())
        outputs = [(index, number) for index, row in enumerate(parsed) for number in range(row.num_submits)]
        stream_ids = tensors["stream_id"].tolist() if "stream_id" in tensors else None
        call.expect(rows, len(outputs), stream_ids)
        for index, number in outputs:
            request = parsed[index].sequence(number)
            self._submit(
                OutputSequence(next(self._ids), request, call, (index, number), self._metrics.phases)
            )

    def _submit(self, output: OutputSequence) -> None:
        with self._lock:
            self._running[output.request_id] = output
        self._metrics.submitted += 1
        self._has_work.set()
        message: Submit = msgspec.structs.replace(output.request.submit, request_id=output.request_id)
        try:
            self._engine.send(message)
        except CodedError as exc:
            self._relay.feed(self._ends([(output.request_id, exc)]))

    def _stop(self, call: Call) -> None:
        """NVIDIA's ``stop`` input: cancel the running requests with this id, and send an empty response.

        Without such a request it does not involve the engine: the runner uses it as a health check.
        """
        if not call.request_id:
            raise InvalidTensor(name="stop", expected="sent with a request id", value=True)
        if not self._engine.is_ready:
            self._engine.send(Cancel(0))  # Raises E2107.
        self._cancel_all(lambda each: each.request_id == call.request_id)
        call.respond((0, 0), [], "stop")

    def _cancel_call(self, call: Call) -> None:
        self._cancel_all(lambda each: each is call)

    def _cancel_all(self, is_meant: Callable[[Call], bool]) -> None:
        with self._lock:
            outputs = [each for each in self._running.values() if is_meant(each.call)]
        for output in outputs:
            self._cancel(output)

    def _cancel(self, output: OutputSequence) -> None:
        if output.is_cancelled:
            return
        output.is_cancelled = True
        self._metrics.cancel_requests += 1
        self._cancel_in_engine(output.request_id)

    def _cancel_in_engine(self, request_id: int) -> None:
        try:
            self._engine.send(Cancel(request_id))
        except CodedError:
            pass  # The worker has ended and holds nothing any more; ``lost`` ends the request here.

    # Results: from the worker to the relay, in the reader thread

    def received(self, messages: list[FromWorker]) -> None:
        """See ``runner.engines.worker.process.Listener``: feeds the whole batch to the relay at once."""
        feeds: list[tuple[Stream, list[int], End | None]] = []
        for message in messages:
            match message:
                case LogProbs(new=values):
                    for request_id, log_probs in values:
                        if (output := self._running.get(request_id)) is not None:
                            output.log_probs += log_probs
                case Tokens(new=new):
                    find = self._running.get
                    for request_id, tokens in new:
                        if (output := find(request_id)) is not None:
                            feeds.append((output.stream, tokens, None))
                    self._metrics.tokens += sum(len(tokens) for _, tokens in new)
                case Finished(request_id=request_id, reason=reason, sequences=sequences):
                    if sequences is not None and (output := self._running.get(request_id)) is not None:
                        self._metrics.tokens += sum(map(len, sequences))
                        output.beams = sequences
                    feeds += self._ends([(request_id, reason)])
                case Failed(request_id=request_id, error=wire_error):
                    error = wire_error.restore()
                    self._cancel_in_engine(request_id)  # It still runs if the worker rejected its output.
                    self._log_lost([request_id], f"the engine failed a request: {error.code}")
                    feeds += self._ends([(request_id, error)])
                case Statistics():
                    self._metrics.statistics = message
                case _:
                    log.error("unexpected message from the engine worker: %r", message)
        if feeds:
            self._relay.feed(feeds)

    def _after_round(self) -> None:
        if self._socket is not None:
            self._socket.flush()

    def lost(self, error: CodedError) -> None:
        """See ``runner.engines.worker.process.Listener``: all running requests end with the error."""
        self._metrics.statistics = Statistics(active=0, queued=0)
        with self._lock:
            request_ids = list(self._running)
        self._log_lost(request_ids, f"requests ended with {error.code}")
        self._relay.feed(self._ends([(request_id, error) for request_id in request_ids]))

    def is_waiting(self) -> bool:
        """See ``runner.engines.worker.process.Listener``."""
        return bool(self._running)

    def _log_lost(self, request_ids: list[int], message: str) -> None:
        """Log the ids of the callers' requests, if they have any."""
        running = [self._running.get(each) for each in request_ids]
        named = [each.call.request_id for each in running if each is not None and each.call.request_id]
        if named:
            fields = {"request_ids": named, "engine_request_ids": request_ids}
            log.error("%s", message, extra={"fields": fields})

    def _ends(self, ends: list[tuple[int, End]]) -> list[tuple[Stream, list[int], End | None]]:
        feeds: list[tuple[Stream, list[int], End | None]] = []
        for request_id, end in ends:
            with self._lock:
                output = self._running.pop(request_id, None)
            if output is not None:
                output.ended_s = time.perf_counter()
                self._metrics.ended(end)
                feeds.append((output.stream, [], end))
        return feeds

    # Cancellation and metrics

    def _watch(self) -> None:
        """Find cancelled requests and publish metrics while requests are running."""
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
            clock.wait(max(self._cancel_poll_s, _CANCEL_DUTY * round_s))

    def _poll_cancellations(self) -> float:
        """Ask Triton about each running request. Returns the duration in seconds."""
        start_s = time.perf_counter()
        with self._lock:
            running = list(self._running.values())
        for output in running:
            if not output.is_cancelled and output.call.is_cancelled():
                self._cancel(output)
        return time.perf_counter() - start_s


def _tensors(request: Any) -> Tensors:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def _parameters(model_config: dict[str, Any]) -> dict[str, str]:
    """The model's parameters with a value."""
    pairs = ((key, value["string_value"]) for key, value in model_config["parameters"].items())
    return {key: value for key, value in pairs if value}


def _command(parameters: dict[str, str]) -> EngineCommand:
    arrival = parameters.get(PARAMETER)
    return EngineCommand(
        arrival=Path(arrival) if arrival else None,
        python=parameters.pop("engine_python"),
        engine_kind=parameters.pop("engine_kind"),
        engine_dir=Path(parameters.pop("gpt_model_path")),
        start_timeout_s=float(parameters.pop("engine_start_timeout_s")),
        hang_timeout_s=float(parameters.pop("engine_hang_timeout_s")),
        options=parameters,
    )
