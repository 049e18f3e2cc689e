"""The slot: the Triton Python model ``tensorrt_llm``, a client of the engine server.

It runs in Triton's stub process. A request becomes one or more output sequences; the relay sends the tokens
of each to Triton's response sender.
"""

import itertools
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import triton_python_backend_utils as pb_utils

from errors.coded_error import CodedError
from errors.requests import InvalidTensor, UnsupportedArgument
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    LogProbs,
    Statistics,
    Submit,
    ToClient,
    Tokens,
)
from runner.engines.protocol.relay import End, Relay, Stream
from runner.engines.protocol.triton_front import CALL, DIRECT, SINGLE_RESPONSE, front_socket_path
from runner.observability.logs import set_up_logging
from runner.slot.call import NO_TOKEN, Call, OutputSequence
from runner.slot.engine_connection import EngineConnection
from runner.slot.front_link import FrontLink
from runner.slot.request import SlotRequest, parse_row
from runner.slot.rows import Tensors, batch_size
from runner.slot.stops import Stops
from runner.slot.triton_metrics import TritonMetrics

_REST = 2
"""See ``Relay``: a response through Triton costs this process most of what it costs the machine."""

log = logging.getLogger("cog_triton.slot")


class TritonPythonModel:
    """Triton's interface of a Python model. ``initialize`` returns when the engine is loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        set_up_logging()
        config = json.loads(args["model_config"])
        self._is_decoupled = bool(config["model_transaction_policy"]["decoupled"])
        parameters = _parameters(config)
        self._includes_input = parameters.get("exclude_input_in_output") == "false"
        self._ids = itertools.count(1)
        self._running: dict[int, OutputSequence] = {}
        self._lock = threading.Lock()
        self._stops = Stops()
        self._counts: queue.SimpleQueue[list[float] | None] = queue.SimpleQueue()
        """Counts of the engine server; empty if the connection was lost, None at the end."""
        engine_socket = Path(parameters["engine_socket"])
        self._front = FrontLink(front_socket_path(engine_socket), args["model_version"])
        self._relay = Relay(_REST, self._front.flush)
        self._engine = EngineConnection(engine_socket, self._received, self._lost)
        self._engine.wait_ready()
        self._metrics = TritonMetrics(pb_utils, self._engine.ready.engine_kind)
        threading.Thread(target=self._publish, name="slot-metrics", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            parameters = json.loads(request.parameters() or "{}")
            is_single = not self._is_decoupled or SINGLE_RESPONSE in parameters
            sender, request_id = request.get_response_sender(), request.request_id()
            call = Call(sender, request_id, is_single=is_single, on_lost=self._cancel)
            call.front_call = str(parameters.get(CALL, ""))
            if DIRECT in parameters:
                call.answer_directly(self._front, request.requested_output_names())
            self._begin(request, call, parameters)

    def finalize(self) -> None:
        self._counts.put(None)
        self._engine.close()
        self._relay.close()

    # Requests: from Triton to the engine server

    def _begin(self, request: Any, call: Call, parameters: Mapping[str, Any]) -> None:
        try:
            if self._stops.add(parameters):
                self._cancel_all(lambda each: each.call.stop(is_meant=self._stops.has(each.call.front_call)))
                call.confirm()
                return
            if self._stops.has(call.front_call):  # Its client had disconnected before Triton brought it here.
                call.reject("cancelled")
                return
            self._accept({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}, call)
        except CodedError as exc:
            call.reject(exc)
        except Exception as exc:
            log.exception("request could not be read", extra={"fields": {"request_ids": [call.request_id]}})
            call.reject(InvalidTensor(name="request", expected="of the model's tensors", value=exc))

    def _accept(self, tensors: Tensors, call: Call) -> None:
        if "stop" in tensors and bool(tensors["stop"].reshape(-1)[0]):
            self._stop(call)
            return
        rows = batch_size(tensors)
        parsed = [
            parse_row(tensors, index, self._engine.ready, includes_input=self._includes_input)
            for index in range(rows)
        ]
        if call.is_single:
            self._check_single(parsed)
        outputs = [
            (OutputSequence(next(self._ids), request, call, (index, number)), submit)
            for index, request in enumerate(parsed)
            for number, submit in enumerate(request.submits())
        ]
        stream_ids = tensors["stream_id"].tolist() if "stream_id" in tensors else None
        for request, ids in zip(parsed, stream_ids or (), strict=False):
            if request.includes_input and not request.is_streaming:
                ids[1:] = [NO_TOKEN] * len(ids[1:])  # The text begins with the prompt's.
        call.expect(rows, len(outputs), stream_ids)
        for output, submit in outputs:
            self._submit(output, submit)

    def _check_single(self, requests: list[SlotRequest]) -> None:
        """Raise E1103 or E1104 for what does not fit into a single response."""
        if any(each.is_streaming for each in requests):
            remedy = "it needs decoupled_mode: true and a stream: ModelStreamInfer or generate_stream"
            kind = self._engine.ready.engine_kind
            raise UnsupportedArgument(name="streaming", value=True, engine_kind=kind, remedy=remedy)
        if len(counts := {each.num_sequences for each in requests}) > 1:
            expected = "the same in all rows of a request that is not streamed"
            raise InvalidTensor(name="num_return_sequences", expected=expected, value=sorted(counts))

    def _submit(self, output: OutputSequence, submit: Submit) -> None:
        request_id = output.request_id
        message = msgspec.structs.replace(
            submit, request_id=request_id, caller_id=output.call.request_id, sent_s=time.perf_counter()
        )
        try:
            # NOTE: one step for ``_lost``: it ends this request, or the request goes to the next connection.
            with self._lock:
                self._running[request_id] = output
                self._engine.send(message)
        except CodedError as exc:
            self._relay.feed(self._ends([(request_id, exc)]))

    def _stop(self, call: Call) -> None:
        """Serve NVIDIA's ``stop`` input: cancel running requests with this id, and send an empty response.

        Without such a request it does not involve the engine: the runner uses it as a health check.
        Raises E1103 if there is no id.
        """
        if not call.request_id:
            raise InvalidTensor(name="stop", expected="sent with a request id", value=True)
        self._engine.check_ready()
        self._cancel_all(lambda each: each.call.stop(is_meant=each.call.request_id == call.request_id))
        call.confirm()

    def _cancel(self, call: Call) -> None:
        self._cancel_all(lambda each: each.call is call)

    def _cancel_all(self, is_meant: Callable[[OutputSequence], bool]) -> None:
        with self._lock:
            running = list(self._running.values())
        for output in running:
            if not output.is_cancelled and is_meant(output):
                output.is_cancelled = True
                with suppress(CodedError):  # The engine has ended; ``_lost`` ends the request.
                    self._engine.send(Cancel(output.request_id))

    # Results: from the engine server to the relay, in the connection's thread

    def _received(self, messages: list[ToClient]) -> None:
        """Feed the whole batch to the relay at once."""
        feeds: list[tuple[Stream, list[int], End | None]] = []
        find = self._running.get
        for message in messages:
            match message:
                case Tokens(new=new):
                    for request_id, tokens in new:
                        if (output := find(request_id)) is not None:
                            feeds.append((output.stream, tokens, None))
                case LogProbs(new=values):
                    for request_id, log_probs in values:
                        if (output := find(request_id)) is not None:
                            output.log_probs += log_probs
                case Finished(request_id=request_id, reason=reason):
                    if (output := find(request_id)) is not None:
                        output.sequences = message.sequences or []
                        output.times_s = message.times_s
                        feeds += self._ends([(request_id, reason)])
                case Failed(request_id=request_id, error=error):
                    feeds += self._ends([(request_id, error.restore())])
                case Statistics(counts=counts):
                    self._counts.put(counts)
        if feeds:
            self._relay.feed(feeds)

    def _lost(self, error: CodedError) -> None:
        """End all running requests with the error."""
        with self._lock:
            running = list(self._running.values())
        if named := [each.call.request_id for each in running if each.call.request_id]:
            fields = {"request_ids": named}
            log.error("requests ended with %s", error.code, extra={"fields": fields})
        self._relay.feed(self._ends([(each.request_id, error) for each in running]))
        self._counts.put([])

    def _ends(self, ends: list[tuple[int, End]]) -> list[tuple[Stream, list[int], End | None]]:
        feeds: list[tuple[Stream, list[int], End | None]] = []
        for request_id, end in ends:
            if (output := self._running.pop(request_id, None)) is not None:
                feeds.append((output.stream, [], end))
        return feeds

    def _publish(self) -> None:
        """Publish metrics in a thread of its own, because Triton is asked for each."""
        while (counts := self._counts.get()) is not None:
            if counts:
                self._metrics.publish(counts)
            else:
                self._metrics.engine_lost()


def _parameters(model_config: dict[str, Any]) -> dict[str, str]:
    """Return the model's parameters that have a value."""
    pairs = ((key, value["string_value"]) for key, value in model_config["parameters"].items())
    return {key: value for key, value in pairs if value}
