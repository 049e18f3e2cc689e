"""The executor: queue, batch, responses, cancellation, statistics; the forms for one model directory."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

from ._config import CommunicationMode, ExecutorConfig, ModelType
from ._generator import Sequence
from ._pybind import Arg, bind, check, instance, optional, path, u64
from ._ranks import RANK, SIZE, Ranks
from ._request import Request
from ._result import IterationStats, Response

_TOKENS_PER_BLOCK = 64
_INIT = (
    Arg("model_path", path),
    Arg("model_type", instance(ModelType)),
    Arg("executor_config", instance(ExecutorConfig)),
)
_AWAIT = (Arg("id", optional(u64), None), Arg("timeout", optional(instance(timedelta)), None))


class Executor:
    def __init__(self, *given: Any, **named: Any) -> None:
        values = bind("Executor.__init__", _INIT, len(_INIT), given, named)
        model = Path(values["model_path"])
        self._config: ExecutorConfig = values["executor_config"]
        self._load(model)
        self._lock = threading.Condition()
        self._queue: deque[tuple[int, Request]] = deque()
        self._active: list[Sequence] = []
        self._responses: dict[int, list[Response]] = {}
        self._ended: set[int] = set()
        self._cancelled: set[int] = set()
        self._kept: set[tuple[int, ...]] = set()
        self._stats: deque[IterationStats] = deque(maxlen=self._config.iter_stats_max_iterations or None)
        self._next_id = 1
        self._iteration = 0
        self._is_shut_down = False
        self._ranks = Ranks()
        if RANK == 0:
            threading.Thread(target=self._run, name="executor", daemon=True).start()

    def _load(self, model: Path) -> None:
        try:
            document = json.loads((model / "config.json").read_text())
            build, pretrained = document["build_config"], document["pretrained_config"]
        except (OSError, ValueError, KeyError) as exc:
            raise RuntimeError(f"[TensorRT-LLM][ERROR] Assertion failed: Error opening {model}") from exc
        mapping = pretrained["mapping"]
        world = mapping["tp_size"] * mapping["pp_size"] * mapping.get("cp_size", 1)
        parallel = self._config.parallel_config
        if parallel is None or parallel.communication_mode is CommunicationMode.LEADER:
            check(
                world == SIZE,
                "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp when "
                "participantIds are not specified",
            )
        if parallel is not None and parallel.device_ids is not None:
            check(
                len(parallel.device_ids) == world,
                "When specifying deviceIds, deviceIds size must be equal to tp*pp*cp",
            )
        engine = model / f"rank{RANK}.engine"
        check(engine.is_file(), f"Error opening engine file: {engine}")
        self._settings = _settings(engine)
        if self._settings.get("broken_rank") == RANK:
            raise RuntimeError("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory")
        self._vocab_size = pretrained["vocab_size"]
        self._max_seq_len = build["max_seq_len"]
        self._max_input_len = build["max_seq_len"] - 1
        self._max_batch_size = min(self._config.max_batch_size or 1 << 30, build["max_batch_size"])
        max_tokens = self._config.kv_cache_config.max_tokens or self._max_batch_size * self._max_seq_len
        self._max_blocks = max(1, max_tokens // _TOKENS_PER_BLOCK)

    def can_enqueue_requests(self) -> bool:
        return RANK == 0 and not self._is_shut_down

    def enqueue_request(self, request: Request) -> int:
        bind("enqueue_request", (Arg("request", instance(Request)),), 1, (request,), {})
        self._check_open()
        check(RANK == 0, "Only leader can enqueue requests")
        with self._lock:
            limit = self._config.max_queue_size
            if limit and len(self._queue) >= limit:
                raise RuntimeError(
                    f"[TensorRT-LLM][ERROR] Maximum queue size of {limit} has been reached, "
                    "please try again later"
                )
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._queue.append((request_id, request))
            self._lock.notify_all()
        return request_id

    def await_responses(self, *given: Any, **named: Any) -> list[Response]:
        """NOTE: for an id whose last response was taken, without a timeout, this waits for ever."""
        values = bind("await_responses", _AWAIT, 1, given, named)
        request_id, timeout = values["id"], values["timeout"]
        self._check_open()

        def is_there() -> bool:
            return self._is_shut_down or bool(
                self._responses if request_id is None else self._responses.get(request_id)
            )

        with self._lock:
            self._lock.wait_for(is_there, None if timeout is None else timeout.total_seconds())
            ids = list(self._responses) if request_id is None else [request_id]
            return [response for each in ids for response in self._responses.pop(each, [])]

    def cancel_request(self, id: int) -> None:  # noqa: A002
        request_id = u64(id)
        self._check_open()
        with self._lock:
            if request_id not in self._ended:
                self._cancelled.add(request_id)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """Return the statistics since the last call."""
        self._check_open()
        with self._lock:
            stats = list(self._stats)
            self._stats.clear()
        return stats

    def shutdown(self) -> None:
        """On the leader: ends the others. On another rank: waits for that."""
        if not self._is_shut_down:
            with self._lock:
                self._is_shut_down = True
                self._lock.notify_all()
            self._ranks.close()

    def _check_open(self) -> None:
        check(not self._is_shut_down, "Shutdown called")

    def _run(self) -> None:
        interval_s = 1 / self._settings.get("tokens_per_second", 1000)
        while True:
            with self._lock:
                while not (self._queue or self._active or self._is_shut_down):
                    self._lock.wait()
                if self._is_shut_down:
                    return
                self._step()
            time.sleep(interval_s)

    def _step(self) -> None:
        new: list[Response] = []
        while self._queue and len(self._active) < self._max_batch_size:
            request_id, request = self._queue.popleft()
            if (error := self._refusal(request)) is not None:
                new.append(Response(request_id, error))
            else:
                self._active.append(Sequence(request_id, request, self._vocab_size, self._max_seq_len))
                self._active[-1].reused_blocks = self._reuse(request.input_token_ids)
        for sequence in self._active:
            sequence.is_cancelled = sequence.request_id in self._cancelled
            if (response := sequence.step()) is not None:
                new.append(response)
        for response in new:
            self._responses.setdefault(response.request_id, []).append(response)
            if response.has_error() or response.result.is_final:
                self._ended.add(response.request_id)
                self._cancelled.discard(response.request_id)
        scheduled = len(self._active)
        self._active = [each for each in self._active if each.request_id not in self._ended]
        self._note(scheduled)
        if new:
            self._lock.notify_all()

    def _reuse(self, ids: list[int]) -> int:
        """Return the number of blocks at the beginning that an earlier request had.

        The last token is computed.
        """
        if not self._config.kv_cache_config.enable_block_reuse:
            return 0
        ends = range(_TOKENS_PER_BLOCK, len(ids), _TOKENS_PER_BLOCK)
        prefixes = {tuple(ids[:end]) for end in ends}
        reused = len(prefixes & self._kept)
        self._kept |= prefixes
        return reused

    def _refusal(self, request: Request) -> str | None:
        length = len(request.input_token_ids)
        if length > self._max_input_len:
            return (
                f"Prompt length ({length}) exceeds maximum input length ({self._max_input_len}). Set log "
                "level to info and check TRTGptModel logs for how maximum input length is set"
            )
        if request.sampling_config.beam_width > self._config.max_beam_width:
            return "Requested beam width is larger than configured max beam width"
        if request.lora_config is not None and request.lora_config.weights is None:
            return f"LoRA task {request.lora_config.task_id} not found in cache. Please send LoRA weights"
        if any(not 0 <= token < self._vocab_size for token in request.input_token_ids):
            # What happens to one that gets past the checks takes the device with it.
            return "Encountered an error in forwardAsync function: CUDA runtime error: illegal memory access"
        return None

    def _note(self, scheduled: int) -> None:
        self._iteration += 1
        stats = IterationStats()
        stats.iter = self._iteration
        stats.num_active_requests = len(self._active)
        stats.num_queued_requests = len(self._queue)
        stats.max_num_active_requests = self._max_batch_size
        blocks = sum(-(-each.num_tokens // _TOKENS_PER_BLOCK) for each in self._active)
        cache = stats.kv_cache_stats
        cache.max_num_blocks, cache.used_num_blocks = self._max_blocks, min(blocks, self._max_blocks)
        cache.free_num_blocks = cache.max_num_blocks - cache.used_num_blocks
        cache.tokens_per_block = _TOKENS_PER_BLOCK
        stats.inflight_batching_stats.num_scheduled_requests = scheduled
        stats.inflight_batching_stats.num_gen_requests = scheduled
        self._stats.append(stats)


def _settings(engine: Path) -> dict[str, Any]:
    """Read a test's engine file, which may be a JSON object: ``tokens_per_second``, ``broken_rank``."""
    try:
        settings = json.loads(engine.read_bytes()[: 1 << 16])
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}
