"""Streams by each API of a server on a paced engine, which repeats the tokens of the prompt."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice, pairwise
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from perf.bench.measure import cog_target, openai_target
from perf.load.http import HttpClient, RequestFailed
from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.target import Posting, Workload
from perf.load.targets.triton import TritonTarget
from perf.servers import Stack
from perf.triton_grpc import TritonGRPCTarget
from runner.triton_server.model_names import ENSEMBLE, SLOT

COG, OPENAI, TRITON = APIS = ("Cog", "API", "Triton")
ENSEMBLE_HTTP, SLOT_GRPC, ENSEMBLE_GRPC = TRITON_APIS = ("ensemble", "slot, gRPC", "ensemble, gRPC")
CLOSED = "closed"
"""The error of a stream whose connection was closed."""
_TIMEOUT_S = 90.0
_TRITON_PROMPT_TOKENS = 8
_CODE = re.compile(r"E[12]\d{3}")
_SHOWN_CHARACTERS = 40
_TARGETS: dict[str, Callable[[Stack, Workload], Posting]] = {
    COG: partial(cog_target, is_streaming=True),
    OPENAI: openai_target,
    TRITON: lambda stack, work: TritonTarget(stack.triton_url, SLOT, work),
    ENSEMBLE_HTTP: lambda stack, work: TritonTarget(stack.triton_url, ENSEMBLE, work),
    SLOT_GRPC: lambda stack, work: TritonGRPCTarget(stack.triton_grpc, SLOT, work),
    ENSEMBLE_GRPC: lambda stack, work: TritonGRPCTarget(stack.triton_grpc, ENSEMBLE, work),
}


class KnownStream(NamedTuple):
    """``error`` is a code, CLOSED, or blank for a stream that was completed.

    ``is_exact``: the text is the known one, or its beginning if the stream was not completed.
    """

    api: str
    error: str
    is_exact: bool
    pauses_s: Sequence[float]
    """Between pieces of output."""
    first_s: float
    """Until the first one; 0 if there was none."""

    @property
    def longest_pause_s(self) -> float:
        return max(self.pauses_s, default=0.0)


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

    async def request(self, api: str, prompt: str, num_tokens: int) -> KnownStream:
        work = Workload(prompt, _TRITON_PROMPT_TOKENS, num_tokens, is_fixed_length=False)
        target = _TARGETS[api](self._stack, work)
        response: Response | None
        start_s = time.perf_counter()
        try:
            (response,) = await target.exchange(self._http)
            is_closed = False
        except RequestFailed as exc:
            response, is_closed = exc.response, True

        def read() -> KnownStream:
            answer = Answer() if response is None else target.read([response])
            code = _CODE.search(answer.error)
            error = CLOSED if is_closed else code[0] if code else answer.error[:_SHOWN_CHARACTERS]
            text = text_of(response) if response is not None and response.status == 200 else ""
            # A token has a character at least: no more of the known text may have arrived.
            most_tokens = min(num_tokens, len(text) + 1) if error else num_tokens
            if self._tokenizer is None:
                known = text
            elif api in (TRITON, SLOT_GRPC):
                known = ids_text(islice(cycle(json.loads(target.request.body)["input_ids"]), most_tokens))
            else:
                known = repeated_text(self._tokenizer, prompt, most_tokens)
            is_exact = known.startswith(text) if error else known == text
            pauses_s = [after - before for before, after in pairwise(answer.output_s)]
            first_s = answer.output_s[0] - start_s if answer.output_s else 0.0
            return KnownStream(api, error, is_exact, pauses_s, first_s)

        # In a thread, as reading takes time, in which pauses of other streams would seem longer.
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)


def repeated_text(tokenizer: Tokenizer, prompt: str, num_tokens: int) -> str:
    """A paced engine's answer to the prompt."""
    return str(tokenizer.decode(list(islice(cycle(tokenizer.encode(prompt).ids), num_tokens))))


def text_of(response: Response) -> str:
    """The text of a stream by any API, as far as it came."""
    data = (event.data for event in events(response))
    return "".join(piece(json.loads(each)) for each in data if each != b"[DONE]")


def piece(document: dict[str, Any]) -> str:
    """The text in one event of any API."""
    if "output_ids" in document:
        ids = document["output_ids"]
        return ids_text(ids if isinstance(ids, list) else [ids])
    text = document.get("chunk", "") or document.get("text_output", "")
    return str(text) + "".join(each["text"] for each in document.get("choices", ()))


def ids_text(ids: Iterable[int]) -> str:
    """Triton's slot sends no text."""
    return "".join(f"{each} " for each in ids)
