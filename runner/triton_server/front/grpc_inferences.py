"""Inference calls of Triton's gRPC API: each request is adapted to its model on the way to Triton."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from errors.triton_front import InvalidInference
from runner.triton_server.front.answers import failure_of
from runner.triton_server.front.grpc_calls import CallConnection, ClientCall, parsed
from runner.triton_server.front.grpc_wire import OK, Headers, check_wire
from runner.triton_server.front.inference import ERROR, Inference

_ERRORS_END_CALL = b"triton_grpc_error", b"true"
"""Metadata by which a client asks that the first error ends its stream, with a status.

NOTE: Triton 2.51 does not get it: after such an error it uses memory that it has freed (server#8708).
"""


class StreamInfer(ClientCall):
    """``ModelStreamInfer``: any number of requests and responses."""

    is_unary = False
    _inference: Inference | None = None

    def __init__(self, connection: CallConnection, stream_id: int, method: str, metadata: Headers) -> None:
        self.max_bytes = connection.server.max_body_bytes
        super().__init__(
            connection, stream_id, method, [each for each in metadata if each != _ERRORS_END_CALL]
        )
        self._ends_at_error = _ERRORS_END_CALL in metadata

    def message(self, message: bytes) -> None:
        request = _request(message)
        inference = self._begun()
        try:
            inference.send(request)
        except CodedError as exc:
            if self._ends_at_error:
                raise
            # As Triton does: the other requests of the stream go on.
            error = pb.ModelStreamInferResponse(error_message=str(exc))
            error.infer_response.id = request.id
            self.respond(error.SerializeToString())

    def ended_sending(self) -> None:
        self._begun().half_close()

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancel()

    @property
    def is_idle(self) -> bool:
        return self._inference is None or not self._inference.is_running

    def _begun(self) -> Inference:
        if self._inference is None:
            self._inference = Inference(self.server.inferences, self.metadata, self._receive, self.finish)
        return self._inference

    def _receive(self, message: bytes) -> None:
        if self._ends_at_error and message.startswith(ERROR):
            self.finish(*failure_of(pb.ModelStreamInferResponse.FromString(message)))
            self.cancel()
        else:
            self.respond(message)


class Infer(StreamInfer):
    """``ModelInfer``: a request and its only response."""

    is_unary = True

    def __init__(self, connection: CallConnection, stream_id: int, method: str, metadata: Headers) -> None:
        super().__init__(connection, stream_id, method, [*metadata, _ERRORS_END_CALL])
        self._responses: list[bytes] = []

    def message(self, message: bytes) -> None:
        request = _request(message)
        self._inference = Inference(
            self.server.inferences, self.metadata, self._receive, self._finish, is_single=True
        )
        self._inference.send(request, is_last=True)

    def ended_sending(self) -> None:
        """The request was sent as the last."""

    def _receive(self, message: bytes) -> None:
        self.release()
        self._responses.append(message)
        if len(self._responses) > 1:
            reason = "the model sends several responses; use ModelStreamInfer, or streaming or stream false"
            self.fail(InvalidInference(reason=reason))

    def _finish(self, status: int, text: str) -> None:
        if status == OK and self._responses:
            response = pb.ModelStreamInferResponse.FromString(self._responses[0])
            if response.error_message:
                status, text = failure_of(response)
            else:
                self.respond(response.infer_response.SerializeToString())
        self.finish(status, text)


def _request(message: bytes) -> Any:
    """Raises InvalidInference (E1107)."""
    check_wire(message)
    return parsed(message, pb.ModelInferRequest)
