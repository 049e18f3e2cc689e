"""Answers to requests for inference by HTTP: from Triton's messages to the client's connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2 as pb

from errors.api import InternalError
from errors.coded_error import CodedError
from errors.triton_front import InvalidInference
from runner.triton_server.front.answers import error_body, generate_body, status_of_text, statuses_of
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.json_requests import InferFormat
from runner.triton_server.grpc_wire import OK, UNAVAILABLE

_EVENTS = b"text/event-stream; charset=utf-8"

log = logging.getLogger("cog_triton.triton_front")


class Answer:
    """To ``generate``: one response, as JSON."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._responses: list[bytes] = []
        self.cancel: Callable[[], None]

    def receive(self, message: bytes) -> None:
        self._responses.append(message)
        if len(self._responses) == 2:  # Others may have come with it.
            self.cancel()
            reason = (
                "the model sends several responses; use generate_stream, or send streaming or stream as false"
            )
            self._connection.respond(400, error_body(str(InvalidInference(reason=reason))))

    def end(self, status: int, text: str) -> None:
        try:
            self._end(status, text)
        except Exception as exc:  # noqa: BLE001 - each becomes an answer
            fail(self._connection, coded(exc))

    def _end(self, status: int, text: str) -> None:
        if status != OK:
            self._connection.respond(503 if status == UNAVAILABLE else status_of_text(text), error_body(text))
            return
        if not self._responses:
            self._connection.respond(500, error_body("the model sent no response"))
            return
        response = pb.ModelStreamInferResponse.FromString(self._responses[0])
        if response.error_message:
            text = response.error_message
            self._connection.respond(status_of_text(text), error_body(text))
            return
        self.respond(response.infer_response)

    def respond(self, response: Any) -> None:
        self._connection.respond(200, generate_body(response))


class InferAnswer(Answer):
    """To ``infer``."""

    def __init__(self, connection: HTTPConnection, form: InferFormat) -> None:
        super().__init__(connection)
        self._form = form

    def respond(self, response: Any) -> None:
        body, json_length = self._form.body(response)
        if json_length is None:
            self._connection.respond(200, body)
            return
        header = b"inference-header-content-length: %d" % json_length
        self._connection.respond(200, body, b"application/octet-stream", (header,))


class StreamAnswer(Answer):
    """To ``generate_stream``: an event for each response."""

    _has_begun = False

    def receive(self, message: bytes) -> None:
        response = pb.ModelStreamInferResponse.FromString(message)
        error = response.error_message
        if not self._has_begun:
            if error and not response.infer_response.parameters:  # Triton has not begun it.
                self._connection.respond(status_of_text(error), error_body(error))
                self.cancel()
                return
            self._begin(status_of_text(error) if error else 200)
        self._connection.write(_event(error_body(error) if error else generate_body(response.infer_response)))

    def end(self, status: int, text: str) -> None:
        if status != OK:
            if not self._has_begun:
                self._connection.respond(
                    503 if status == UNAVAILABLE else status_of_text(text), error_body(text)
                )
                return
            self._connection.write(_event(error_body(text)))
        elif not self._has_begun:
            self._begin(200)
        self._connection.end()

    def _begin(self, status: int) -> None:
        self._has_begun = True
        self._connection.begin(status, _EVENTS)


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def coded(exc: Exception) -> CodedError:
    """What the client is told; what is not its fault is logged."""
    if isinstance(exc, CodedError):
        return exc
    if isinstance(exc, msgspec.DecodeError | UnicodeDecodeError | RecursionError):
        return InvalidInference(reason=str(exc))
    log.error("a request of Triton's HTTP API failed", exc_info=exc)
    return InternalError()


def fail(connection: HTTPConnection, error: CodedError) -> None:
    connection.respond(statuses_of(error)[0], error_body(str(error)))
