"""The runner's client of the engine slot: Triton's ``generate_stream`` over HTTP.

Errors of the way become ours here, at one point: E2101 (silence), E2103 and E2104 (bad events),
E2105 (Triton gone), and whatever coded error the slot put into its answer. A request that Triton or the
engine took down with it before its first token is sent once more, when they are back, and nobody notices.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any

import msgspec

from errors import find_in_text
from errors.base import CodedError
from errors.prompt import PromptTooLong
from errors.tensorrt_llm import RankEnded
from errors.triton_system import (
    EngineCrashed,
    ServerStopping,
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonTokenizerError,
    TritonUnavailable,
    TritonUnknownError,
)
from runner.engines.process import NOT_READY
from runner.flight_recorder import RequestShape
from runner.triton_connection import Connection, ConnectionPool

_MODEL_PATH = "/v2/models/tensorrt_llm"
_EVENT_PREFIX = b"data:"
_EVENT_END = b"\n\n"
_QUOTED_DATA_LENGTH = 200
_PROBE_TIMEOUT_S = 2.0
_RETRY_WAIT_S = 10.0
"""How long a request without a token waits for Triton or the engine to be back, before it fails."""
_RETRY_POLL_S = 0.05
_PROMPT_TOO_LONG = re.compile(r"Prompt length \((\d+)\) exceeds maximum input length \((\d+)\)")
"""What NVIDIA's TensorRT-LLM backend says, which has no code of ours."""


class Event(msgspec.Struct):
    """One event of the slot: new tokens, the end, or an error. Other keys are Triton's own."""

    output_ids: int | list[int] | None = None
    finish_reason: str | None = None
    arrival_time_ns: int | None = None
    last_token_time_ns: int | None = None
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        # Triton writes a tensor of one element as a bare number.
        return [self.output_ids] if isinstance(self.output_ids, int) else self.output_ids or []


class TritonClient:
    """Use as ``async with``; one per process. ``down_reason`` tells why Triton is known to be away."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        down_reason: Callable[[], str | None] = lambda: None,
        remember: Callable[[Mapping[str, Any]], RequestShape] = lambda _: RequestShape({}),
    ) -> None:
        """``remember``: each request, for the flight recorder."""
        self._remember = remember
        self._stopping: ServerStopping | None = None
        self.num_running = 0
        self._timeout_s = timeout_s
        self._down_reason = down_reason
        self._decoder = msgspec.json.Decoder(Event)
        self._connections = ConnectionPool(base_url)

    async def __aenter__(self) -> TritonClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    async def generate(self, inputs: Mapping[str, Any]) -> AsyncGenerator[list[Event], None]:
        """Stream a generation: all events that have arrived, each time, until the last.

        ``inputs`` are the slot's tensors by name. Leaving the iteration closes the connection, by
        which Triton cancels the request. Raises a CodedError.
        """
        if self._stopping is not None:
            raise self._stopping
        if (reason := self._down_reason()) is not None:
            raise TritonUnavailable(reason=reason)
        shape = self._remember(inputs)
        self.num_running += 1
        try:
            async with aclosing(self._with_retry(inputs)) as batches:
                async for events in batches:
                    shape.output_tokens += sum(len(event.tokens) for event in events)
                    yield events
            shape.ended = "done"
        except CodedError as exc:
            shape.ended = exc.code
            raise
        finally:
            self.num_running -= 1
            shape.ended = shape.ended or "left"

    def refuse(self, reason: str) -> None:
        """Take no new requests from now on: E2110."""
        self._stopping = ServerStopping(reason=reason)

    def end_all(self, reason: str) -> None:
        """End what runs with E2110, and take nothing new."""
        self.refuse(reason)
        self._connections.close()

    async def _with_retry(self, inputs: Mapping[str, Any]) -> AsyncGenerator[list[Event], None]:
        has_begun = False
        try:
            async with aclosing(self._once(inputs)) as batches:
                async for events in batches:
                    has_begun = True
                    yield events
            return
        except (TritonUnavailable, EngineCrashed, RankEnded) as exc:
            if has_begun or self._stopping is not None or NOT_READY in exc.sentence:
                raise
            if not await self._is_back():
                raise
        async with aclosing(self._once(inputs)) as batches:
            async for events in batches:
                yield events

    async def _is_back(self) -> bool:
        """Wait until Triton and the engine answer again; False if they don't soon."""
        deadline_s = time.monotonic() + _RETRY_WAIT_S
        while time.monotonic() < deadline_s and self._stopping is None:
            if self._down_reason() is None and await self.is_slot_answering():
                return True
            await asyncio.sleep(_RETRY_POLL_S)
        return False

    async def _once(self, inputs: Mapping[str, Any]) -> AsyncGenerator[list[Event], None]:
        try:
            connection = await self._connections.take()
            try:
                # NOTE: silence is what we bound; a long answer is not an error.
                status = await connection.post(
                    f"{_MODEL_PATH}/generate_stream", msgspec.json.encode(inputs), self._timeout_s
                )
                if status != 200:
                    raise _failure((await _read_all(connection)).decode(errors="replace"))
                rest = b""
                while data := await connection.read():
                    *whole, rest = (rest + data).split(_EVENT_END)
                    if whole:
                        yield [self._event(each) for each in whole]
                if rest.strip():
                    raise TritonMalformedJSON(data=_quote(rest))
            finally:
                self._connections.give_back(connection)
        except asyncio.TimeoutError as exc:
            raise TritonTimeout(timeout_s=self._timeout_s) from exc
        except OSError as exc:
            if self._stopping is not None:
                raise self._stopping from exc
            raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc

    async def is_answering(self) -> bool:
        """True if Triton and the slot say anything at all, be it that there is no engine."""
        return await self._probe() is not None

    async def is_slot_answering(self) -> bool:
        """True if Triton and the engine worker behind the slot answer now."""
        return await self._probe() == 200

    async def _probe(self) -> int | None:
        """The status of an answer that the slot gives without the engine's help; None if none comes."""
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
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise TritonMalformedJSON(data=_quote(data)) from exc
        if event.error is not None:
            raise _failure(event.error)
        if event.output_ids is None:
            raise TritonMalformedEvent(event=_quote(data))
        return event


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while data := await connection.read():
        parts.append(data)
    return b"".join(parts)


def _failure(text: str) -> CodedError:
    """Ours, if the slot said so; otherwise by what is known of Triton's texts."""
    try:
        # An error before a stream's first event is JSON, or that as an event, by where Triton found it.
        text = str(msgspec.json.decode(text.strip().removeprefix("data:"))["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        pass  # Not Triton's JSON: the text itself is all we have.
    if (error := find_in_text(text)) is not None:
        return error
    if (lengths := _PROMPT_TOO_LONG.search(text)) is not None:
        return PromptTooLong(prompt_tokens=int(lengths[1]), max_input_tokens=int(lengths[2]))
    if "the first token of the stop sequence IDs was not" in text:
        return TritonTokenizerError(reason=text)
    return TritonUnknownError(reason=text)


def _quote(data: bytes) -> str:
    return data[:_QUOTED_DATA_LENGTH].decode(errors="replace")
