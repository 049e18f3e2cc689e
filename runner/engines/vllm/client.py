"""Client of vLLM's engine core, which is a process of its own.

This is the client that vLLM's own ``LLM`` uses. ``AsyncLLM`` would add a queue, a coroutine and a detokenizer
to each request; the engine server needs all tokens of a step together.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from engine.pooling import Pooling, PoolingMode
from errors.coded_error import CodedError, single_spaced
from errors.engines import VllmArgumentsRefused, VllmOrderFailed, VllmStartFailed
from runner.engines.vllm.core_process import becomes_core, inspects_models, release
from runner.engines.vllm.interface import (
    ROCM_VARIABLES,
    AsyncEngineArgs,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    Executor,
    PoolerConfig,
    SchedulerStats,
    SyncMPClient,
    UsageContext,
    VllmConfig,
)
from runner.engines.vllm.rank_threads import announce, keep_threads
from runner.engines.vllm.root_cause import RootCause, write_root_cause
from runner.engines.vllm.scheduler import ReportingAsyncScheduler, ReportingScheduler

_POOLING_TYPES: dict[PoolingMode, str] = {"mean": "MEAN", "cls": "CLS", "lasttoken": "LAST"}
KILLED = "its process was killed or crashed"

log = logging.getLogger("cog_triton.engine")


class Client(SyncMPClient):  # type: ignore[misc]
    """A client by which several threads may send, unlike a bare ZeroMQ socket."""

    def __init__(self, config: VllmConfig, root_cause: RootCause) -> None:
        self._sending = threading.Lock()
        self._is_shut_down = False
        self._root_cause = root_cause
        super().__init__(config, Executor.get_class(config), log_stats=False)

    def _send_input(self, request_type: Any, request: Any) -> None:
        with self._sending:
            super()._send_input(request_type, request)

    def wait_until_processed(self) -> None:
        """Return when the engine core has processed all earlier messages, which it does in order."""
        self.is_sleeping()

    @contextmanager
    def order(self, action: str) -> Iterator[None]:
        """Provide a context whose errors without a code become E2206. The core goes on after them."""
        try:
            yield
        except CodedError:
            raise
        except Exception as exc:
            self._root_cause.clear()
            raise VllmOrderFailed(action=action, reason=_one_line(str(exc))) from exc

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the client. vLLM calls this if the core was killed: ``get_output`` would wait for ever."""
        self._is_shut_down = True
        super().shutdown(timeout)
        self.outputs_queue.put_nowait(RuntimeError(KILLED))

    def death_reason(self, error: Exception) -> str:
        """Return the first exception in the engine core's log, else ``error``, as the client got it."""
        return _one_line(self._root_cause.first() or (KILLED if self._is_shut_down else str(error)))


class ReplicasClient(Client):
    """A client of several engine cores, one for each replica of the model (``data_parallel_size``).

    vLLM's own client of several cores is for ``AsyncLLM``. If one core dies, vLLM ends all.
    """

    def __init__(self, config: VllmConfig, root_cause: RootCause) -> None:
        self._cores: dict[str, bytes] = {}
        """Core of each request."""
        self._loads: Counter[bytes] = Counter()
        self._statistics: dict[int, SchedulerStats] = {}
        super().__init__(config, root_cause)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Give the request to the core with the fewest."""
        with self._sending:
            core = min(self.core_engines, key=self._loads.__getitem__)
            self._cores[request.request_id] = core
            self._loads[core] += 1
            # In this block, so that no abort comes before it.
            self._send(core, EngineCoreRequestType.ADD, request)

    def abort_requests(self, request_ids: list[str]) -> None:
        by_core: dict[bytes, list[str]] = {}
        for request_id in request_ids:
            if (core := self._forget(request_id)) is not None:
                by_core.setdefault(core, []).append(request_id)
        for core, keys in by_core.items():
            with self._sending:
                self._send(core, EngineCoreRequestType.ABORT, keys)

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call the method of each core at the same time; return the first core's result."""
        results: list[Future[Any]] = []
        for core in self.core_engines:
            call_id, result = uuid.uuid1().int >> 64, Future[Any]()
            self.utility_results[call_id] = result
            with self._sending:
                self._send(core, EngineCoreRequestType.UTILITY, (0, call_id, method, args))
            results.append(result)
        found = [result.result() for result in results]
        return found[0]

    def get_output(self) -> EngineCoreOutputs:
        """Return a step's outputs of one core, with the statistics of all."""
        outputs = super().get_output()
        for request_id in outputs.finished_requests or ():
            self._forget(request_id)
        if outputs.scheduler_stats is not None:
            self._statistics[outputs.engine_index] = outputs.scheduler_stats
            found = self._statistics.values()
            outputs.scheduler_stats = SchedulerStats(
                num_running_reqs=sum(each.num_running_reqs for each in found),
                num_waiting_reqs=sum(each.num_waiting_reqs for each in found),
                kv_cache_usage=sum(each.kv_cache_usage for each in found) / len(self.core_engines),
            )
        return outputs

    def _forget(self, request_id: str) -> bytes | None:
        with self._sending:
            core = self._cores.pop(request_id, None)
            if core is not None:
                self._loads[core] -= 1
            return core

    def _send(self, core: bytes, request_type: Any, request: Any) -> None:
        """Send, while ``_sending`` is held."""
        self.core_engine = core
        SyncMPClient._send_input(self, request_type, request)


def make_config(arguments: dict[str, Any], pooling: Pooling | None = None) -> VllmConfig:
    """Make vLLM's configuration. Raises VllmArgumentsRefused."""
    environment = dict(os.environ)
    try:
        if pooling is not None:
            pooler = PoolerConfig(
                seq_pooling_type=_POOLING_TYPES[pooling.mode], use_activation=pooling.is_normalized
            )
            arguments = {**arguments, "runner": "pooling", "pooler_config": pooler}
        if arguments.get("speculative_config"):
            # NOTE: after a sleep of level 2, ``reload_weights`` does not read those of a draft model.
            kept = {"sleep_preserve_parameter_names": ["draft.*"]}
            arguments = {**kept, **arguments, "per_request_spec_decode_metrics": "summary"}
        # The context decides the defaults of max_num_batched_tokens and max_num_seqs: those of `vllm serve`.
        with inspects_models():
            config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    # vLLM raises ValueError, AssertionError, pydantic's and many other errors.
    except Exception as exc:
        raise VllmArgumentsRefused(reason=_one_line(_refusal(exc))) from exc
    # NOTE: for some models vLLM sets variables here that others of its modules read when they are imported.
    changed = sorted({key for key, _ in environment.items() ^ os.environ.items()})
    if changed := [key for key in changed if not key.startswith(ROCM_VARIABLES)]:
        log.info("vLLM's configuration sets %s: the core imports vLLM again", ", ".join(changed))
        release()
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is not None:
        reason = f"it needs vLLM's scheduler {scheduler.scheduler_cls}, which is not supported"
        raise VllmArgumentsRefused(reason=reason)
    scheduler.scheduler_cls = ReportingAsyncScheduler if scheduler.async_scheduling else ReportingScheduler
    return config


def start(config: VllmConfig) -> Client:
    """Start the engine core and wait until it is ready. Raises VllmStartFailed with the root cause."""
    kind = ReplicasClient if config.parallel_config.data_parallel_size > 1 else Client
    announce(Executor.get_class(config))
    with _start_errors() as root_cause, becomes_core():
        return kind(config, root_cause)


def start_ranks(config: VllmConfig) -> Callable[[], str]:
    """Start the ranks of a node that is not the head. Return a function that waits until one ends, and why.

    Raises VllmStartFailed with the root cause.
    """
    announce(kind := Executor.get_class(config))
    keep_threads()
    with _start_errors() as root_cause:
        executor = kind(config, monitor_workers=False)

    def wait() -> str:
        executor.start_worker_monitor(inline=True)
        return _one_line(root_cause.first() or "a rank ended")

    return wait


@contextmanager
def _start_errors() -> Iterator[RootCause]:
    """Provide a context whose errors become VllmStartFailed."""
    root_cause = RootCause()
    write_root_cause()
    try:
        yield root_cause
    except Exception as exc:
        reason = _one_line(root_cause.first() or f"{type(exc).__name__}: {exc}")
        raise VllmStartFailed(reason=reason, remedy=_remedy(reason)) from exc
    root_cause.clear()


def _refusal(exc: Exception) -> str:
    """Return what an error of vLLM's configuration says. Of pydantic's error, only the faults are of use."""
    from pydantic import ValidationError

    if not isinstance(exc, ValidationError):
        return f"{type(exc).__name__}: {exc}"
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in exc.errors()]
    return "; ".join(
        f"{name}: {text}" if name else text.removeprefix("Value error, ") for name, text in faults
    )


def _one_line(text: str) -> str:
    line = single_spaced(text)
    return line if len(line) <= 400 else line[:397] + "..."


def _remedy(reason: str) -> str:
    if "memory" in reason.lower():
        return (
            "end other programs on the GPU, use more or larger GPUs (tensor_parallel_size), "
            "or lower max_model_len, max_num_seqs or gpu_memory_utilization"
        )
    return "see its log, above in Triton's log"
