"""The ``tensorrt_llm`` engine: a compiled engine in TensorRT-LLM's executor, through its Python bindings.

Written for the published interface of 0.16, and tested only with a stand-in of it (tests/standins).

NOTE: importing ``tensorrt_llm`` initializes MPI, so only processes that serve such an engine import it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from engine.tensorrt_llm_config import CompiledConfig, read_compiled_config
from errors.coded_error import CodedError
from errors.engines import EngineStartFailed
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import GUIDE_TYPES, FinishReason, Ready, Statistics, Submit
from runner.engines.tensorrt_llm.requests import check, coded, executor_request, is_device_lost, sentence
from runner.engines.tensorrt_llm.settings import (
    Options,
    executor_config,
    guided_decoding_config,
    is_chunked,
    parse_options,
)
from runner.engines.tensorrt_llm.statistics import IDLE, gauges

ENGINE_KIND = "tensorrt_llm"

_AWAIT = timedelta(milliseconds=100)
"""Longest wait for responses, and so for the end of the thread."""
_CLOSE_TIMEOUT_S = 3.0


@dataclass
class _Running:
    """A request in the executor."""

    request_id: int
    is_beam_search: bool
    is_cancelled: bool = False
    is_cache_known: bool = False


class TensorrtLlmEngine:
    """See ``protocol.adapter.EngineAdapter``. The executor assigns its own request ids: both ids are kept."""

    def __init__(
        self,
        bindings: Any,
        executor: Any,
        sink: Sink,
        ready: Ready,
        check: Callable[[Submit], None],
        reused_block_tokens: int = 0,
    ) -> None:
        """Initialize. ``reused_block_tokens``: size of a block of the KV cache; 0 without reuse."""
        self._bindings = bindings
        self._executor = executor
        self._sink = sink
        self.ready = ready
        self._check = check
        self._reused_block_tokens = reused_block_tokens
        self._running: dict[int, _Running] = {}
        self._executor_ids: dict[int, int] = {}
        self._lock = threading.Lock()
        """Held until the executor's id of a new request is stored: its response may arrive before."""
        self._gauges: dict[str, float] = {}
        self._is_closed = False
        reasons = bindings.FinishReason
        self._reasons: dict[Any, FinishReason] = {
            reasons.END_ID: "end",
            reasons.STOP_WORDS: "stop",
            reasons.LENGTH: "length",
        }
        self._awaiter = threading.Thread(target=self._await, name="tensorrt-llm-responses", daemon=True)
        self._awaiter.start()

    def submit(self, request: Submit) -> None:
        try:
            self._check(request)
            reuses_blocks = bool(self._reused_block_tokens)
            message = executor_request(self._bindings, request, reuses_blocks=reuses_blocks)
            with self._lock:
                executor_id = self._executor.enqueue_request(message)
                self._running[executor_id] = _Running(request.request_id, request.sampling.beam_width > 1)
                self._executor_ids[request.request_id] = executor_id
        except CodedError as error:
            self._sink.failed(request.request_id, error)
        # Errors of the library's own checks: a full queue, an invalid value.
        except (RuntimeError, TypeError, ValueError) as exc:
            self._sink.failed(request.request_id, coded(str(exc)))

    def cancel(self, request_id: int) -> None:
        """Cancel. The executor sends a last, empty result when the request's resources are free."""
        with self._lock:
            executor_id = self._executor_ids.get(request_id)
            if executor_id is None:
                return
            self._running[executor_id].is_cancelled = True
            self._executor.cancel_request(executor_id)

    def statistics(self) -> Statistics:
        """Return the last iteration's statistics. There are no iterations without requests."""
        latest = [] if self._is_closed else self._executor.get_latest_iteration_stats()
        if latest:
            self._gauges = gauges(latest[-1])
        if not self._running:
            self._gauges |= {name: 0.0 for name in IDLE if name in self._gauges}
            self._gauges |= {"free_num_blocks": self._gauges.get("max_num_blocks", 0.0)}
        blocks = self._gauges.get("max_num_blocks")
        return Statistics(
            active=int(self._gauges.get("num_active_requests", 0)),
            queued=int(self._gauges.get("num_queued_requests", 0)),
            cache_used=self._gauges.get("used_num_blocks", 0.0) / blocks if blocks else None,
            gauges=dict(self._gauges),
        )

    def close(self) -> None:
        """Cancel all requests, because ``shutdown`` waits for them. The leader's end ends the other ranks."""
        with self._lock:
            for executor_id in self._running:
                self._executor.cancel_request(executor_id)
        self._is_closed = True
        self._awaiter.join(_CLOSE_TIMEOUT_S)
        self._executor.shutdown()

    def _await(self) -> None:
        try:
            while not self._is_closed:
                # NOTE: never by id: after the last response of a request this would wait for ever.
                if responses := self._executor.await_responses(timeout=_AWAIT):
                    self._report(responses)
        # Any error: without this loop no request gets an answer.
        except Exception as exc:  # noqa: BLE001
            if not self._is_closed:
                self._sink.broken(exc)

    def _report(self, responses: list[Any]) -> None:
        """Report all tokens of a step together, then the ends."""
        tokens: list[tuple[int, list[int]]] = []
        cached: list[tuple[int, int]] = []
        ended: list[tuple[_Running, Any]] = []
        with self._lock:
            for response in responses:
                running = self._running.get(response.request_id)
                if running is None:
                    continue
                if response.has_error() or response.result.is_final:
                    del self._running[response.request_id]
                    del self._executor_ids[running.request_id]
                    ended.append((running, response))
                if response.has_error():
                    continue
                metrics = response.result.request_perf_metrics if self._reused_block_tokens else None
                if metrics is not None and not running.is_cache_known:
                    running.is_cache_known = True
                    count = metrics.kv_cache_metrics.num_reused_blocks * self._reused_block_tokens
                    cached.append((running.request_id, count))
                if not running.is_beam_search:
                    # NOTE: the result of a cancelled request is empty: no beams, or beams without tokens.
                    sequences = response.result.output_token_ids
                    if sequences and sequences[0]:
                        tokens.append((running.request_id, list(sequences[0])))
        if cached:
            self._sink.cached(cached)
        if tokens:
            self._sink.tokens(tokens)
        for running, response in ended:
            self._end(running, response)

    def _end(self, running: _Running, response: Any) -> None:
        if response.has_error():
            text = response.error_msg
            self._sink.failed(running.request_id, coded(text))
            if is_device_lost(text):
                self._sink.broken(RuntimeError(sentence(text)))
            return
        reason = self._reason(running, response.result)
        if running.is_beam_search and reason != "cancelled":
            sequences = [list(each) for each in response.result.output_token_ids]
            self._sink.finished(running.request_id, reason, sequences)
        else:
            self._sink.finished(running.request_id, reason)

    def _reason(self, running: _Running, result: Any) -> FinishReason:
        # NOTE: the finish reason of a cancelled request has no name in the bindings.
        for reason in result.finish_reasons[:1]:
            if reason in self._reasons:
                return self._reasons[reason]
        return "cancelled" if running.is_cancelled else "length"


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> TensorrtLlmEngine:
    """Load the engine on this process's GPU; with several ranks, this is the leader's part.

    Raises InvalidSetting for a bad option and EngineStartFailed for everything else.
    """
    parsed = parse_options(options)
    compiled = read_compiled_config(engine_dir)
    bindings, executor = _open_executor(engine_dir, parsed, compiled)
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=compiled.vocab_size,
        max_sequence_length=compiled.max_seq_len,
        max_batch_size=compiled.max_batch_size,
        guide_types=GUIDE_TYPES if "guided_decoding_backend" in parsed else (),
    )
    limits = {
        "prompt_limit": compiled.prompt_limit(is_chunked=is_chunked(parsed, compiled)),
        "max_beam_width": parsed.get("max_beam_width", 1),
    }
    return TensorrtLlmEngine(
        bindings,
        executor,
        sink,
        ready,
        partial(check, ready=ready, **limits),
        compiled.tokens_per_block if parsed.get("enable_kv_cache_reuse") else 0,
    )


def num_ranks(engine_dir: Path) -> int:
    return read_compiled_config(engine_dir).world_size


def follow(engine_dir: Path, options: Mapping[str, str]) -> None:
    """Work as a rank that does not lead, until the leader ends. Raises as ``load``."""
    _, executor = _open_executor(engine_dir, parse_options(options), read_compiled_config(engine_dir))
    executor.shutdown()  # NOTE: on such a rank, this waits until the leader ends.


def _open_executor(engine_dir: Path, options: Options, compiled: CompiledConfig) -> tuple[Any, Any]:
    """Make the bindings and an executor. Each rank makes one; this returns when all ranks have."""
    try:
        from tensorrt_llm.bindings import executor as bindings

        config = executor_config(bindings, options, compiled)
        if "guided_decoding_backend" in options:
            config.guided_decoding_config = guided_decoding_config(bindings, engine_dir)
        model = bindings.Executor(str(engine_dir), bindings.ModelType.DECODER_ONLY, config)
    except CodedError:
        raise
    # MPI, CUDA or the driver is missing, the engine does not fit this GPU, or the memory is too small.
    except Exception as exc:
        reason = f"{type(exc).__name__}: {sentence(str(exc))}"
        raise EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason) from exc
    return bindings, model
