"""Answers to requests for inference by HTTP: from Triton's messages to the client's connection."""

import asyncio
import logging
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2 as pb

from errors.api import BodyTooLarge, HeaderTooLarge, InternalError, RequestNotReceived, TooManyConnections
from errors.coded_error import CodedError
from errors.triton_front import InvalidInference, RequestTooLarge
from runner.http.connection import Refusal
from runner.http.exchange import Exchange
from runner.triton_server.front.answers import error_body, generate_body, status_of_text, statuses_of
from runner.triton_server.front.json_requests import InferFormat
from runner.triton_server.grpc_wire import OK, UNAVAILABLE

JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_BINARY = (b"content-type", b"application/octet-stream")
_MAX_UNREAD_BYTES = 1 << 20

log = logging.getLogger("cog_triton.triton_front")


class Answered(Exception):
    """Signal that the client has its answer: the rest of the inference is cancelled."""


class Answer:
    """The answer to ``generate``: one response, as JSON. It is complete when ``done`` has a result."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._responses: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, message: bytes) -> None:
        self._responses.append(message)
        if len(self._responses) == 2:  # Others may have come with it.
            reason = (
                "the model sends several responses; use generate_stream, or send streaming or stream as false"
            )
            self._fail(InvalidInference(reason=reason))

    def end(self, status: int, text: str) -> None:
        if self.done.done():
            return
        try:
            self._end(status, text)
        except Exception as exc:  # noqa: BLE001 - each becomes an answer
            self._fail(exc)
        else:
            self.done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _end(self, status: int, text: str) -> None:
        if status != OK:
            self._respond_error(503 if status == UNAVAILABLE else status_of_text(text), text)
            return
        if not self._responses:
            self._respond_error(500, "the model sent no response")
            return
        response = pb.ModelStreamInferResponse.FromString(self._responses[0])
        if text := response.error_message:
            self._respond_error(status_of_text(text), text)
            return
        self._respond(response.infer_response)

    def _respond_error(self, status: int, text: str) -> None:
        self._exchange.respond(status, error_body(text), JSON)

    def _respond(self, response: Any) -> None:
        self._exchange.respond(200, generate_body(response), JSON)


class InferAnswer(Answer):
    """The answer to ``infer``."""

    def __init__(self, exchange: Exchange, form: InferFormat) -> None:
        super().__init__(exchange)
        self._form = form

    def _respond(self, response: Any) -> None:
        body, json_length = self._form.body(response)
        if json_length is None:
            self._exchange.respond(200, body, JSON)
            return
        length = (b"inference-header-content-length", b"%d" % json_length)
        self._exchange.respond(200, body, _BINARY, length)


class StreamAnswer(Answer):
    """The answer to ``generate_stream``: an event for each response."""

    def receive(self, message: bytes) -> None:
        if self.done.done():
            return
        response, exchange = pb.ModelStreamInferResponse.FromString(message), self._exchange
        error = response.error_message
        if not exchange.has_started:
            if error and not response.infer_response.parameters:  # Triton has not begun it.
                self._respond_error(status_of_text(error), error)
                self.done.set_exception(Answered())
                return
            exchange.start(status_of_text(error) if error else 200, [_EVENTS])
        exchange.write(_event(error_body(error) if error else generate_body(response.infer_response)))
        if exchange.unread_bytes > _MAX_UNREAD_BYTES:
            exchange.abort()

    def _end(self, status: int, text: str) -> None:
        exchange = self._exchange
        if status != OK and not exchange.has_started:
            self._respond_error(503 if status == UNAVAILABLE else status_of_text(text), text)
            return
        if not exchange.has_started:
            exchange.start(200, [_EVENTS])
        exchange.finish(b"" if status == OK else _event(error_body(text)))


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def coded(exc: Exception) -> CodedError:
    """Return what the client is told; what is not its fault is logged."""
    if isinstance(exc, CodedError):
        return exc
    if isinstance(exc, msgspec.DecodeError | UnicodeDecodeError | RecursionError):
        return InvalidInference(reason=str(exc))
    log.error("a request of Triton's HTTP API failed", exc_info=exc)
    return InternalError()


def word_refusal(error: CodedError, path: str) -> Refusal | None:
    """Word the answer to a request that does not reach the application."""
    facts = error.facts
    if isinstance(error, RequestNotReceived | TooManyConnections):
        return None
    if isinstance(error, HeaderTooLarge):
        remedy = "send fewer headers"
        return (
            431,
            [JSON],
            error_body(str(RequestTooLarge(part="head", max_bytes=facts["max_bytes"], remedy=remedy))),
        )
    if isinstance(error, BodyTooLarge):
        error = too_large(facts["max_bytes"])
    return statuses_of(error)[0], [JSON], error_body(str(error))


def too_large(max_bytes: object) -> RequestTooLarge:
    remedy = "send less, or raise TRITON_MAX_BODY_BYTES"
    return RequestTooLarge(part="body", max_bytes=max_bytes, remedy=remedy)
