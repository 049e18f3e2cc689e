"""Arguments of TensorRT-LLM's ``LLM``, from ``llm_args.json`` and the engine's options.

The builder has checked ``llm_args.json``. The options (server configuration) override it, by NVIDIA's names
for the compiled engines where there is such a name.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from engine.kinds import LLM_ARGS_NAME
from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.options import (
    KV_EVENTS_OPTION,
    Parser,
    fraction,
    integer,
    one_of,
    parse_options,
    read_object,
    switch,
)

ENGINE_KIND = "tensorrt_llm_pytorch"


def _names(*names: str) -> Parser:
    return one_of({name: name for name in names})


_OPTIONS: dict[str, tuple[Parser, str]] = {
    "max_batch_size": (integer(1), "max_batch_size"),
    "dtype": (_names("auto", "float16", "bfloat16", "float32"), "dtype"),
    "tensor_parallel_size": (integer(1), "tensor_parallel_size"),
    "enable_chunked_context": (switch, "enable_chunked_prefill"),
    "guided_decoding_backend": (_names("xgrammar", "llguidance"), "guided_decoding_backend"),
    "kv_cache_free_gpu_mem_fraction": (
        partial(fraction, is_above_zero=True),
        "kv_cache_config.free_gpu_memory_fraction",
    ),
    "max_tokens_in_paged_kv_cache": (integer(1), "kv_cache_config.max_tokens"),
    "enable_kv_cache_reuse": (switch, "kv_cache_config.enable_block_reuse"),
    "kv_cache_host_memory_bytes": (integer(0), "kv_cache_config.host_cache_size"),
    "batch_scheduler_policy": (
        one_of({name.lower(): name for name in ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT")}),
        "scheduler_config.capacity_scheduler_policy",
    ),
    "scheduling_policy": (_names("fcfs", "priority"), "scheduler_config.waiting_queue_policy"),
}
"""Option -> its parser and the argument, or a key of one, that it sets."""
_FOR_OTHERS = {
    *("FORCE_CPU_ONLY_INPUT_TENSORS", "cancellation_check_period_ms", "stats_check_period_ms"),
    "engine_cache_dir",
    KV_EVENTS_OPTION,
}
"""Options that Triton, the slot or the engine server reads, or that every engine gets."""
_DEFAULTS = {"gpt_model_type": "inflight_fused_batching", "max_beam_width": "1", "max_queue_size": "0"}
"""Options of compiled engines that the server configuration always has, and their only value here."""
_EVENT_BUFFER = 1 << 14
_BLOCK_TOKENS = 32
"""The library's default of ``tokens_per_block``."""


def read_arguments(engine_dir: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Return keyword arguments for ``LLM``. Raises EngineStartFailed and InvalidSetting."""
    arguments = read_object(engine_dir / LLM_ARGS_NAME, ENGINE_KIND)
    for name, text in options.items():
        if text and name not in _OPTIONS and name not in _FOR_OTHERS and text != _DEFAULTS.get(name):
            expected = f"left out for an engine of the kind {ENGINE_KIND}"
            raise InvalidSetting(name=name, expected=expected, value=text)
    parsed = parse_options(options, {name: parser for name, (parser, _) in _OPTIONS.items()})
    for name, value in parsed.items():
        argument, _, key = _OPTIONS[name][1].partition(".")
        arguments[argument] = {**(arguments.get(argument) or {}), key: value} if key else value
    if events := options.get(KV_EVENTS_OPTION):
        cache = {"event_buffer_max_size": _EVENT_BUFFER, **(arguments.get("kv_cache_config") or {})}
        obstacles = {
            "enable_attention_dp": arguments.get("enable_attention_dp"),
            "enable_block_reuse: false": cache.get("enable_block_reuse") is False,
            "event_buffer_max_size: 0": not cache["event_buffer_max_size"],
            # The library's events do not tell an adapter's blocks from the model's.
            "lora_config": arguments.get("lora_config"),
        }
        if found := [name for name, is_there in obstacles.items() if is_there]:
            expected = f"left out for an engine with {' and '.join(found)}"
            raise InvalidSetting(name="KV_EVENTS", expected=expected, value=json.loads(events)["endpoint"])
        arguments["kv_cache_config"] = cache
    return {
        **arguments,
        "model": str(engine_dir),
        # Requests and outputs are token ids; only guides need the tokenizer.
        "skip_tokenizer_init": arguments.get("guided_decoding_backend") is None,
        "enable_iter_perf_stats": True,
    }


def block_tokens(arguments: Mapping[str, Any]) -> int:
    """Return the number of tokens of a block of the KV cache."""
    tokens: int = (arguments.get("kv_cache_config") or {}).get("tokens_per_block") or _BLOCK_TOKENS
    return tokens


def model_sizes(engine_dir: Path, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size of the model's vocabulary and the limit of a sequence, in tokens.

    The library does not tell the limit that it finds. Raises EngineStartFailed if a file lacks one of them.
    """
    config = read_object(engine_dir / "config.json", ENGINE_KIND)
    inner = config.get("text_config")
    values = {**(inner if isinstance(inner, dict) else {}), **config}
    length = arguments.get("max_seq_len") or values.get("max_position_embeddings")
    sizes = values.get("vocab_size"), length
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        reason = f"config.json has no vocab_size, or {LLM_ARGS_NAME} no max_seq_len"
        raise EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason)
    return sizes  # type: ignore[return-value]
