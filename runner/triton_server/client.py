"""The runner's client of NVIDIA's C++ backend in the slot: Triton's ``generate_stream`` over HTTP.

Errors of the connection become ours here, at one point: E2101 (silence), E2103 and E2104 (bad events), E2105
(Triton is gone), and the coded error that the slot put into its answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from weakref import WeakSet

import aiohttp
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
from runner.engines.protocol.checks import check_task
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outlet
from runner.triton_server.event_stream import EventParser, ServerEvent
from runner.triton_server.heartbeat import slot_status
from runner.triton_server.model_names import SLOT_PATH
from runner.triton_server.tensors import TensorEvent, tensors_of

_QUOTED_CHARACTERS = 200
_MAX_EVENT_BYTES = 1 << 24
_CONNECT_TIMEOUT_S = 5.0
_PROMPT_TOO_LONG = re.compile(r"Prompt length \((\d{1,9})\) exceeds maximum input length \((\d{1,9})\)")
"""An error of NVIDIA's TensorRT-LLM backend, which has no code of ours."""
_UNEXPECTED = re.compile(r"[Uu]nexpected inference input '(guided_decoding_\w+)'")
"""Triton's message if NVIDIA's C++ backend fills the slot without a guided decoding backend."""


class TritonClient:
    """Use as ``async with``; one per process."""

    def __init__(self, base_url: str, timeout_s: float) -> None:
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._decoder = msgspec.json.Decoder(TensorEvent)
        # NOTE: the timeout is for silence, not for the whole answer.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=timeout_s)
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self._closing: asyncio.Task[None]
        self._session = aiohttp.ClientSession(
            base_url,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def __aenter__(self) -> TritonClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_all()
        await self._closing

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        """See ``TokenSource``. Leaving closes the connection, so that Triton cancels."""
        check_task(embeds=submit.embeds, is_embedding=False)
        num_tokens, has_ended = 0, False
        headers = {"traceparent": submit.traceparent} if submit.traceparent else {}
        try:
            async with self._post("generate_stream", tensors_of(submit), headers=headers) as response:
                if response.status != 200:
                    raise failure((await response.read()).decode(errors="replace"))
                if response.content_length is None and "Transfer-Encoding" not in response.headers:
                    raise aiohttp.ClientPayloadError("its answer has neither a length nor chunks")
                self._responses.add(response)
                parser = EventParser()
                # NOTE: once the connection is lost, readany raises although something has arrived.
                while piece := response.content._read_nowait(-1) or await response.content.readany():
                    if events := parser.feed(piece):
                        output = self._output(events, submit)
                        num_tokens += len(output.tokens)
                        has_ended = has_ended or output.finish_reason is not None
                        yield output
                    if len(parser.rest) > _MAX_EVENT_BYTES:
                        break
                if parser.rest.strip():
                    raise TritonMalformedJSON(data=_quote(parser.rest))
            if not has_ended and num_tokens:
                # NOTE: the last response of NVIDIA's backend has no finish reason.
                yield Output(finish_reason="length" if num_tokens >= submit.max_tokens else "end")
        except aiohttp.ConnectionTimeoutError as exc:
            raise TritonUnavailable(reason=f"no connection within {_CONNECT_TIMEOUT_S:g} s") from exc
        except asyncio.TimeoutError as exc:
            raise TritonTimeout(who="Triton", timeout_s=self._timeout_s, reason="httpx.ReadTimeout") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc

    def end_all(self) -> None:
        """Close the client at once: every running request ends with E2105."""
        for response in self._responses:
            response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        self._closing = asyncio.create_task(self._session.close())

    async def is_answering(self) -> bool:
        """True if Triton and the engine behind the slot answer now."""
        return not self._session.closed and await slot_status(self._base_url) == 200

    def _post(
        self, action: str, inputs: Mapping[str, Any], **options: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session.closed:
            raise aiohttp.ClientConnectionError("the client is closed")
        return self._session.post(f"{SLOT_PATH}/{action}", data=msgspec.json.encode(inputs), **options)

    def _output(self, events: list[ServerEvent], submit: Submit) -> Output:
        output = Output()
        for each in events:
            event = self._event(each.data)
            output.tokens += event.tokens
            if submit.wants_log_probs:
                output.log_probs += event.log_probs(submit.num_top_log_probs)
            if event.finish_reason is not None:
                output.finish_reason = event.finish_reason
        return output

    def _event(self, data: bytes) -> TensorEvent:
        try:
            event = self._decoder.decode(data)
        except msgspec.ValidationError as exc:
            raise TritonMalformedEvent(event=_quote(data)) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise TritonMalformedJSON(data=_quote(data)) from exc
        if event.error is not None:
            raise failure(event.error)
        if event.output_ids is None:
            raise TritonMalformedEvent(event=_quote(data))
        return event


def failure(text: str) -> CodedError:
    """The coded error in the slot's answer, else the one for a known text of Triton."""
    try:
        # An error before the first event is JSON, or JSON as an event, depending on where Triton found it.
        text = str(msgspec.json.decode(text.strip().removeprefix("data:"))["error"])
    except (msgspec.DecodeError, UnicodeError, KeyError, TypeError, RecursionError):
        pass  # Not Triton's JSON: the text is all there is.
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
    return data[:_QUOTED_CHARACTERS].decode(errors="replace")
