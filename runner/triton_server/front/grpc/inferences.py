"""Inference calls of Triton's gRPC API: each request is adapted to its model on the way to Triton."""

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from errors.triton_front import InvalidInference
from runner.triton_server.front.answers import failure_of, statuses_of
from runner.triton_server.front.grpc.calls import CallConnection, ClientCall, parsed
from runner.triton_server.front.inference import ERROR, Inference, error_response
from runner.triton_server.grpc_wire import OK, Headers, check_wire

_ERRORS_END_CALL = b"triton_grpc_error", b"true"
"""Metadata by which a client asks that the first error ends its stream, with a status.

NOTE: Triton 2.51 does not get it: after such an error it uses memory that it has freed (server#8708).
"""


class StreamInfer(ClientCall):
    """``ModelStreamInfer``: any number of requests and responses."""

    is_unary = False
    _is_complete = False
    """The client sends no further request."""

    def __init__(self, connection: CallConnection, stream_id: int, method: str, metadata: Headers) -> None:
        self.max_bytes = connection.server.max_body_bytes
        passed = [each for each in metadata if each != _ERRORS_END_CALL]
        super().__init__(connection, stream_id, method, passed)
        self._ends_at_error = _ERRORS_END_CALL in metadata
        self._running: dict[str, Inference] = {}

    def message(self, message: bytes) -> None:
        request = _request(message)
        self.hand_over(message)  # To its inference.
        try:
            self._send(request)
        except CodedError as exc:
            if self._ends_at_error:
                raise
            # As Triton does: the other requests of the stream go on.
            self.refuse(error_response(str(exc), request.id), statuses_of(exc)[1])

    def ended_sending(self) -> None:
        self._is_complete = True
        self._end_if_done()

    def cancel(self) -> None:
        running, self._running = self._running, {}
        for inference in running.values():
            inference.cancel()

    @property
    def gives_way(self) -> bool:
        return not self._running

    def _send(self, request: Any) -> None:
        key = self.server.inferences.next_key()
        inference = Inference(
            self.server.inferences,
            self.connection,
            key,
            self.metadata,
            self._receive,
            lambda status, text: self._one_ended(key, status, text),
            is_single=self.is_unary,
        )
        self._running[key] = inference
        try:
            inference.send(request)
        except BaseException:
            self._running.pop(key, None)
            raise

    def _receive(self, message: bytes) -> None:
        if not message.startswith(ERROR):
            self._refused = 0
            self.respond(message)
            return
        status, text = failure_of(pb.ModelStreamInferResponse.FromString(message))
        if self._ends_at_error:
            self.finish(status, text)
            self.cancel()
        else:
            self.refuse(message, status)

    def _one_ended(self, key: str, status: int, text: str) -> None:
        self._running.pop(key, None)
        if status != OK:
            self.finish(status, text)
            self.cancel()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_complete and not self._running:
            self.finish(OK, "")


class Infer(StreamInfer):
    """``ModelInfer``: a request and its only response."""

    is_unary = True

    def __init__(self, connection: CallConnection, stream_id: int, method: str, metadata: Headers) -> None:
        super().__init__(connection, stream_id, method, [*metadata, _ERRORS_END_CALL])
        self._responses: list[bytes] = []

    def message(self, message: bytes) -> None:
        request = _request(message)
        self.hand_over(message)
        self._send(request)

    def ended_sending(self) -> None:
        """Do nothing: the request was sent."""

    def _receive(self, message: bytes) -> None:
        self.release()
        self._responses.append(message)
        if len(self._responses) > 1:
            reason = "the model sends several responses; use ModelStreamInfer, or streaming or stream false"
            self.fail(InvalidInference(reason=reason))

    def _one_ended(self, key: str, status: int, text: str) -> None:
        self._running.pop(key, None)
        if status == OK and self._responses:
            response = pb.ModelStreamInferResponse.FromString(self._responses[0])
            if response.error_message:
                status, text = failure_of(response)
            else:
                self.respond(response.infer_response.SerializeToString())
        self.finish(status, text)


def _request(message: bytes) -> Any:
    """Parse a ``ModelInferRequest``. Raises InvalidInference (E1107)."""
    check_wire(message)
    return parsed(message, pb.ModelInferRequest)
