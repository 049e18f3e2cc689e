"""The runner's client of the engine slot: Triton's ``generate_stream`` over HTTP.

Errors of the way become ours here, at one point: E2101 (silence), E2103 and E2104 (bad events),
E2105 (Triton gone), and whatever coded error the slot put into its answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from errors import find_in_text
from errors.coded_error import CodedError
from errors.requests import PromptTooLong, UnsupportedArgument
from errors.triton import (
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonTokenizerError,
    TritonUnavailable,
    TritonUnknownError,
)
from runner.engines.protocol.events import Event
from runner.triton_server.connection import Connection, ConnectionPool

_MODEL_PATH = "/v2/models/tensorrt_llm"
_EVENT_PREFIX = b"data:"
_EVENT_END = b"\n\n"
_QUOTED_DATA_LENGTH = 200
_MOST_EVENT_BYTES = 1 << 24
_PROBE_TIMEOUT_S = 2.0
_PROMPT_TOO_LONG = re.compile(r"Prompt length \((\d{1,9})\) exceeds maximum input length \((\d{1,9})\)")
"""What NVIDIA's TensorRT-LLM backend says, which has no code of ours."""
_UNEXPECTED = re.compile(r"[Uu]nexpected inference input '(guided_decoding_\w+)'")
"""Triton's message if NVIDIA's C++ backend fills the slot without a guided decoding backend."""


class _Event(Event):
    """As Triton's HTTP server sends it. Other keys are Triton's own."""

    error: str | None = None


class TritonClient:
    """Use as ``async with``; one per process. ``down_reason``: why Triton is known to be down, or None."""

    def __init__(
        self, base_url: str, timeout_s: float, down_reason: Callable[[], str | None] = lambda: None
    ) -> None:
        self._timeout_s = timeout_s
        self._down_reason = down_reason
        self._decoder = msgspec.json.Decoder(_Event)
        self._connections = ConnectionPool(base_url)

    async def __aenter__(self) -> TritonClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    @property
    def is_up(self) -> bool:
        """False while Triton is known to be down."""
        return self._down_reason() is None

    async def generate(
        self, inputs: Mapping[str, Any], headers: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        """Stream a generation: all events that have arrived, each time, until the last.

        ``inputs`` are the slot's tensors by name; ``headers`` further lines of the request's head. Leaving
        the iteration closes the connection, by which Triton cancels the request. Raises a CodedError.
        """
        if (reason := self._down_reason()) is not None:
            raise TritonUnavailable(reason=reason)
        try:
            connection = await self._connections.take()
            try:
                # NOTE: the timeout is for silence, not for the whole answer.
                status = await connection.post(
                    f"{_MODEL_PATH}/generate_stream", msgspec.json.encode(inputs), self._timeout_s, headers
                )
                if status != 200:
                    raise failure((await _read_all(connection)).decode(errors="replace"))
                rest = b""
                while data := await connection.read():
                    *whole, rest = (rest + data).split(_EVENT_END)
                    if whole:
                        yield [self._event(each) for each in whole]
                    if len(rest) > _MOST_EVENT_BYTES:
                        raise TritonMalformedJSON(data=_quote(rest))
                if rest.strip():
                    raise TritonMalformedJSON(data=_quote(rest))
            finally:
                self._connections.give_back(connection)
        except asyncio.TimeoutError as exc:
            raise TritonTimeout(timeout_s=self._timeout_s) from exc
        except OSError as exc:
            raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc

    def end_all(self) -> None:
        """Close all connections: waiting requests end with E2105."""
        self._connections.close()

    async def is_answering(self) -> bool:
        """True if Triton and the slot answer, even with an error."""
        return await self._probe() is not None

    async def is_slot_answering(self) -> bool:
        """True if Triton and the engine worker behind the slot answer now."""
        return await self._probe() == 200

    async def _probe(self) -> int | None:
        """The status of a request that the slot answers without the engine; None without an answer."""
        probe = {"id": "health", "stop": True, "request_output_len": 1, "input_ids": [0], "input_lengths": 1}
        try:
            connection = await self._connections.take()
            try:
                status = await connection.post(
                    f"{_MODEL_PATH}/generate", msgspec.json.encode(probe), _PROBE_TIMEOUT_S
                )
                await _read_all(connection)
            finally:
                self._connections.give_back(connection)
        except (OSError, asyncio.TimeoutError):
            return None
        return status

    def _event(self, data: bytes) -> Event:
        try:
            event = self._decoder.decode(data.removeprefix(_EVENT_PREFIX))
        except msgspec.ValidationError as exc:
            raise TritonMalformedEvent(event=_quote(data)) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise TritonMalformedJSON(data=_quote(data)) from exc
        if event.error is not None:
            raise failure(event.error)
        if event.output_ids is None:
            raise TritonMalformedEvent(event=_quote(data))
        return event


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while data := await connection.read():
        parts.append(data)
    return b"".join(parts)


def failure(text: str) -> CodedError:
    """The coded error in the slot's answer, else the one for a known text of Triton."""
    try:
        # An error before a stream's first event is JSON, or that as an event, by where Triton found it.
        text = str(msgspec.json.decode(text.strip().removeprefix("data:"))["error"])
    except (msgspec.DecodeError, UnicodeError, KeyError, TypeError, RecursionError):
        pass  # Not Triton's JSON: the text itself is all we have.
    if (error := find_in_text(text)) is not None:
        return error
    if (lengths := _PROMPT_TOO_LONG.search(text)) is not None:
        return PromptTooLong(prompt_tokens=int(lengths[1]), max_input_tokens=int(lengths[2]))
    if (unexpected := _UNEXPECTED.search(text)) is not None:
        remedy = "set guided_decoding_backend and xgrammar_tokenizer_info_path in the server configuration"
        return UnsupportedArgument(
            name=unexpected[1], value="given", engine_kind="tensorrt_llm", remedy=remedy
        )
    if "the first token of the stop sequence IDs was not" in text:
        return TritonTokenizerError(reason=text)
    return TritonUnknownError(reason=text)


def _quote(data: bytes) -> str:
    return data[:_QUOTED_DATA_LENGTH].decode(errors="replace")
