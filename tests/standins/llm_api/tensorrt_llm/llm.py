"""Stand-in for ``tensorrt_llm.llmapi.llm``: a thread makes a token of each request in each step.

The environment variable ``LLM_API_FAULT`` makes it fail: ``request`` and ``engine`` at a request's second
token, ``start`` when it is made. With ``blocking`` it waits for events and statistics as versions with an RPC
proxy do, and records a wait as ``blocked``. What it gets is written to the folder ``LLM_API_RECORD``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .cache import PrefixCache
from .executor import LoRARequest, RequestError
from .sampling_params import SamplingParams
from .typed import SIGNATURES, check

_STEP_S = 0.002
_BLOCKS = 100


class Logprob(NamedTuple):
    logprob: float
    rank: int


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Any = field(default_factory=list)
    prompt_logprobs: Any = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    additional_context_outputs: Any = None
    additional_generation_outputs: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None


class RequestOutput:
    """A result: each step of the iteration takes one response."""

    def __init__(self, llm: LLM, request_id: int, prompt: list[int], parameters: SamplingParams) -> None:
        self._llm = llm
        self.request_id = request_id
        self.prompt = None
        self.prompt_token_ids = prompt
        self.parameters = parameters
        self.shift = 0
        self.outputs = [CompletionOutput(0)]
        self.context_logits = None
        self.finished = False
        self.cached_tokens = 0
        self._is_aborted = False
        # NOTE: as in the library: without a running loop there is no asynchronous iteration.
        self.loop = asyncio.get_running_loop()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()

    def abort(self) -> None:
        self._is_aborted = True

    def aborted(self) -> bool:
        return self._is_aborted

    def result(self, timeout: float | None = None) -> RequestOutput:
        raise NotImplementedError

    async def aresult(self) -> RequestOutput:
        async for _ in self:
            pass
        return self

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        response = await self.responses.get()
        if isinstance(response, Exception):
            raise response
        token, reason, stop_reason = response
        output = self.outputs[0]
        if token is not None:
            assert output.token_ids is not None
            output.token_ids.append(token)
            if self.parameters.logprobs:
                other = (token + 1) % self._llm.vocab_size
                row = {token: Logprob(math.log(0.75), 1), other: Logprob(-math.inf, 2)}
                output.logprobs = [*output.logprobs, row]
        if reason is not None:
            output.finish_reason, output.stop_reason, self.finished = reason, stop_reason, True
            if stop_reason is not None and not self.parameters.include_stop_str_in_output:
                output.token_ids = (output.token_ids or [])[:-1]
        return self


class IterationResult:
    """Results of all iterations. Once there was none in time, they have ended until the next request."""

    def __init__(self, queue: deque[Any]) -> None:
        self._queue = queue
        self._is_done = False
        self.timeout = 0.0

    def mark_undone(self) -> None:
        self._is_done = False

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> Any:
        end_s = time.monotonic() + self.timeout
        while not self._is_done and not self._queue and time.monotonic() < end_s:  # noqa: ASYNC110 - a thread fills it
            await asyncio.sleep(0.005)
        if self._is_done or not self._queue:
            self._is_done = True
            raise StopAsyncIteration
        return self._queue.popleft()


class LLM:
    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if name not in SIGNATURES["LLM"]:
                raise ValueError(f"LLM got invalid argument: {name}")
        given = {name: value for name, value in locals().items() if name in SIGNATURES["LLM"]} | kwargs
        for name, value in given.items():
            check(name, SIGNATURES["LLM"][name][0], value)
        self._arguments = given
        self._record("llm", {**given, "environment": dict(os.environ)})
        self._fault = os.environ.get("LLM_API_FAULT")
        if self._fault == "start":
            raise RuntimeError("CUDA out of memory.\nTraceback: ...")
        self.vocab_size = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        self._cache = PrefixCache(given.get("kv_cache_config") or {})
        self._stats: deque[dict[str, Any]] = deque(maxlen=1000)
        self._iteration_results: dict[str, IterationResult] = {}
        self._running: list[RequestOutput] = []
        self._count = 0
        self._is_shut_down = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Mapping[str, str] | None = None,
        scheduling_params: Any = None,
        conversation_params: Any = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        given = {name: value for name, value in locals().items() if name != "self"}
        for name, (annotation, *_) in SIGNATURES["LLM.generate_async"].items():
            check(name, annotation, given[name])
        if self._is_shut_down:
            raise RuntimeError("LLM is shutting down")
        parameters = sampling_params or SamplingParams()
        shift = _shift(lora_request)
        if parameters.end_id is None and self._arguments["skip_tokenizer_init"]:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if parameters.guided_decoding is not None and self._arguments["skip_tokenizer_init"]:
            raise ValueError("guided decoding needs a tokenizer")
        if not 0.0 <= priority <= 1.0:
            raise ValueError(f"priority must be a float in [0.0, 1.0], got {priority}")
        for name, queue in (("stats", self._stats), ("events", self._cache.events)):
            self._iteration_results.setdefault(name, IterationResult(queue)).mark_undone()
        with self._lock:
            self._count += 1
            self._record(f"request-{self._count}", given)
            result = RequestOutput(self, self._count, inputs, parameters)
            result.shift = shift
            salt = lora_request and lora_request.lora_int_id, cache_salt
            result.cached_tokens = self._cache.take(inputs, salt)
            self._running.append(result)
        return result

    def get_stats_async(self, timeout: float | None = 2) -> Any:
        assert self._arguments.get("enable_iter_perf_stats"), "statistics are not enabled"
        return self._results("stats", self._stats, timeout)

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> Any:
        assert self._cache.events.maxlen, "events are not enabled"
        return self._results("events", self._cache.events, timeout)

    def _results(self, name: str, queue: deque[Any], timeout: float | None) -> IterationResult:
        results = self._iteration_results.get(name)
        if results is None:  # As in versions without that proxy.
            assert name == "stats", "IterationResult is not properly instantiated"
            return IterationResult(deque())
        results.timeout = timeout or 0.0
        if self._fault == "blocking":
            end_s = time.monotonic() + results.timeout
            time.sleep(0.001)  # The call of the worker.
            while not queue and time.monotonic() < end_s:
                self._record("blocked", {"by": name})
                time.sleep(0.1)
        return results

    def shutdown(self) -> None:
        self._is_shut_down = True

    def _run(self) -> None:
        while not self._is_shut_down:
            time.sleep(_STEP_S)
            with self._lock:
                step = [(result, self._respond(result)) for result in self._running]
                if self._running:
                    self._stats.append(_stats(len(self._running)))
                self._running = [
                    result
                    for result, answer in step
                    if not isinstance(answer, Exception) and answer[1] is None
                ]
                if len(self._running) < len(step):
                    self._cache.flush()
            for result, answer in step:
                result.loop.call_soon_threadsafe(result.responses.put_nowait, answer)

    def _respond(self, result: RequestOutput) -> Any:
        """Return the next token, the finish reason and the stop reason; or an error."""
        if result.aborted():
            return None, "cancelled", None
        parameters, count = result.parameters, result.__dict__.setdefault("count", 0)
        if self._fault in ("request", "engine") and count:
            return RequestError("no room") if self._fault == "request" else RuntimeError("CUDA error")
        token = (
            result.prompt_token_ids[count % len(result.prompt_token_ids)] + result.shift
        ) % self.vocab_size
        if (bias := parameters.embedding_bias) is not None:
            favoured = int(bias.argmax())
            token = favoured if bias[favoured] > 0 else token
            while bias[token] == -math.inf:
                token = (token + 1) % self.vocab_size
        result.__dict__["count"] = count + 1
        can_end = count + 1 > (parameters.min_tokens or 0)
        if token == parameters.end_id and not parameters.ignore_eos and can_end:
            return token, "stop", None
        if token in (parameters.stop_token_ids or ()):
            return token, "stop", token
        return token, "length" if count + 1 >= parameters.max_tokens else None, None

    def _record(self, name: str, given: Mapping[str, Any]) -> None:
        if (folder := os.environ.get("LLM_API_RECORD")) is not None:
            text = json.dumps(given, default=_plain)
            (Path(folder) / f"{name}.json").write_text(text)


def _stats(used: int) -> dict[str, Any]:
    return {
        "iter": 7,
        "numActiveRequests": used,
        "numQueuedRequests": 0,
        "kvCacheStats": {"maxNumBlocks": _BLOCKS, "usedNumBlocks": used, "freeNumBlocks": _BLOCKS - used},
        "inflightBatchingStats": {"numGenRequests": used, "numCtxTokens": 0},
        "staticBatchingStats": None,
    }


def _shift(lora_request: LoRARequest | None) -> int:
    """Return by how much an adapter changes the next token."""
    path = Path(lora_request.lora_path if lora_request else "") / "adapter_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    if config.get("standin_shift") == 0:
        raise RequestError("weights of lora_A are missing")
    return int(config.get("standin_shift", 0))


def _plain(value: object) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else repr(value)  # type: ignore[call-overload]
