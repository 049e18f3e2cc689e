"""Streams by each API of a server on a paced engine, which repeats the tokens of the prompt."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice, pairwise
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from perf.bench.measure import cog_target, openai_target
from perf.load.events import events
from perf.load.http import HttpClient, RequestFailed
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.target import Posting, Workload
from perf.load.targets.triton import SLOT, TritonTarget
from perf.servers import Stack

COG, OPENAI, TRITON = APIS = ("Cog", "API", "Triton")
CLOSED = "closed"
"""The error of a stream whose connection was closed."""
_TIMEOUT_S = 90.0
_TRITON_PROMPT_TOKENS = 8
_CODE = re.compile(r"E[12]\d{3}")
_SHOWN_CHARACTERS = 40


class Stream(NamedTuple):
    """``error`` is a code, CLOSED, or blank for a stream that was completed.

    ``is_exact``: the text is the known one, or its beginning if the stream was not completed.
    """

    api: str
    error: str
    is_exact: bool
    longest_pause_s: float


class KnownStreams:
    """Close it. Without a ``tokenizer`` no text is known, and all count as exact."""

    def __init__(self, stack: Stack, tokenizer: Tokenizer | None) -> None:
        self._stack = stack
        self._tokenizer = tokenizer
        self._http = HttpClient(_TIMEOUT_S)
        self._reader = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._http.close()
        self._reader.shutdown()

    async def request(self, api: str, prompt: str, num_tokens: int) -> Stream:
        target = self._target(api, Workload(prompt, _TRITON_PROMPT_TOKENS, num_tokens, is_fixed_length=False))
        response: Response | None
        try:
            (response,) = await target.exchange(self._http)
            is_closed = False
        except RequestFailed as exc:
            response, is_closed = exc.response, True
        # In a thread, as reading takes time, in which pauses of other streams would seem longer.
        read = partial(self._read, api, target, prompt, num_tokens, response, is_closed)
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    def _read(
        self,
        api: str,
        target: Posting,
        prompt: str,
        num_tokens: int,
        response: Response | None,
        is_closed: bool,
    ) -> Stream:
        answer = Answer() if response is None else target.read([response])
        error = CLOSED if is_closed else _code(answer.error)
        text = _text_of(response) if response is not None and response.status == 200 else ""
        if error:  # A token has a character at least.
            num_tokens = min(num_tokens, len(text) + 1)
        known = self._known_text(api, target, prompt, num_tokens)
        is_exact = known is None or (known.startswith(text) if error else known == text)
        pauses_s = (after - before for before, after in pairwise(answer.output_s))
        return Stream(api, error, is_exact, max(pauses_s, default=0.0))

    def _target(self, api: str, work: Workload) -> Posting:
        if api == COG:
            return cog_target(self._stack, work, is_streaming=True)
        if api == OPENAI:
            return openai_target(self._stack, work)
        return TritonTarget(self._stack.triton_url, SLOT, work)

    def _known_text(self, api: str, target: Posting, prompt: str, num_tokens: int) -> str | None:
        if self._tokenizer is None:
            return None
        if api == TRITON:
            return _ids_text(_repeated(json.loads(target.request.body)["input_ids"], num_tokens))
        return str(self._tokenizer.decode(_repeated(self._tokenizer.encode(prompt).ids, num_tokens)))


def _repeated(ids: Sequence[int], num_tokens: int) -> list[int]:
    return list(islice(cycle(ids), num_tokens))


def _text_of(response: Response) -> str:
    data = (event.data for event in events(response))
    return "".join(_piece(json.loads(each)) for each in data if each != b"[DONE]")


def _piece(document: dict[str, Any]) -> str:
    """The text in one event of any API."""
    if "output_ids" in document:
        ids = document["output_ids"]
        return _ids_text(ids if isinstance(ids, list) else [ids])
    return str(document.get("chunk", "")) + "".join(each["text"] for each in document.get("choices", ()))


def _ids_text(ids: Sequence[int]) -> str:
    """Triton's slot sends no text."""
    return "".join(f"{each} " for each in ids)


def _code(error: str) -> str:
    match = _CODE.search(error)
    return match[0] if match else error[:_SHOWN_CHARACTERS]
