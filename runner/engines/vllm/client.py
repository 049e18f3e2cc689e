"""Client of vLLM's engine core, which is a process of its own.

This is the client that vLLM's own ``LLM`` uses. ``AsyncLLM`` would add a queue, a coroutine and a detokenizer
to each request; the engine server needs all tokens of a step together.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.pooling import Pooling, PoolingMode
from errors.coded_error import CodedError
from errors.engines import VllmArgumentsRefused, VllmOrderFailed, VllmStartFailed
from runner.engines.vllm.core_process import becomes_core, release
from runner.engines.vllm.interface import (
    ROCM_VARIABLES,
    AsyncEngineArgs,
    Executor,
    PoolerConfig,
    SyncMPClient,
    UsageContext,
    VllmConfig,
)
from runner.engines.vllm.root_cause import RootCause, write_root_cause
from runner.engines.vllm.scheduler import ReportingAsyncScheduler, ReportingScheduler

_POOLING_TYPES: dict[PoolingMode, str] = {"mean": "MEAN", "cls": "CLS", "lasttoken": "LAST"}
_KILLED = "its process was killed or crashed"

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
        self.outputs_queue.put_nowait(RuntimeError(_KILLED))

    def death_reason(self, error: Exception) -> str:
        """Return the first exception in the engine core's log, else ``error``, as the client got it."""
        return _one_line(self._root_cause.first() or (_KILLED if self._is_shut_down else str(error)))


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
            arguments = {**arguments, "per_request_spec_decode_metrics": "summary"}
        # The context decides the defaults of max_num_batched_tokens and max_num_seqs: those of `vllm serve`.
        config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    # vLLM raises ValueError, AssertionError, pydantic's and many other errors.
    except Exception as exc:
        raise VllmArgumentsRefused(reason=_one_line(f"{type(exc).__name__}: {exc}")) from exc
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
    with _start_errors() as root_cause, becomes_core():
        return Client(config, root_cause)


def start_ranks(config: VllmConfig) -> Callable[[], str]:
    """Start the ranks of a node that is not the head. Return a function that waits until one ends, and why.

    Raises VllmStartFailed with the root cause.
    """
    with _start_errors() as root_cause:
        executor = Executor.get_class(config)(config, monitor_workers=False)

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


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:397] + "..."


def _remedy(reason: str) -> str:
    if "memory" in reason.lower():
        return (
            "end other programs on the GPU, use more or larger GPUs (tensor_parallel_size), "
            "or lower max_model_len, max_num_seqs or gpu_memory_utilization"
        )
    return "see its log, above in Triton's log"
