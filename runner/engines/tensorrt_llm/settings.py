"""Conversion of the engine's options, by NVIDIA's names, to TensorRT-LLM's ``ExecutorConfig``.

Names and meanings are those of the ``tensorrt_llm`` model of NVIDIA's backend 0.16 (its ``model.py``), except
that an invalid value is E1006 here, where NVIDIA's backend drops it with a warning.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.end_ids import read_end_ids
from engine.tensorrt_llm_config import CompiledConfig
from errors.settings import InvalidSetting
from runner.engines.protocol import options as protocol
from runner.engines.protocol.options import Parser, fraction, integer, one_of, switch

Options = Mapping[str, Any]
"""Parsed options: those that were given, by name."""

_DECODING_MODES = {
    "auto": "Auto",
    "top_k": "TopK",
    "top_p": "TopP",
    "top_k_top_p": "TopKTopP",
    "beam_search": "BeamSearch",
    "medusa": "Medusa",
    "redrafter": "ExplicitDraftTokens",
    "lookahead": "Lookahead",
    "eagle": "Eagle",
}
_BATCHING_TYPES = {"inflight_fused_batching": "INFLIGHT", "inflight_batching": "INFLIGHT", "v1": "STATIC"}
_POLICIES = {"max_utilization": "MAX_UTILIZATION", "guaranteed_no_evict": "GUARANTEED_NO_EVICT"}


def _integers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError("whole numbers with commas between them")
    return [int(part) for part in parts]


def _choices(text: str) -> list[list[int]]:
    """Parse a text such as ``{0, 0}, {0, 1}``."""
    try:
        choices = json.loads(f"[{text.replace('{', '[').replace('}', ']')}]")
    except ValueError:
        choices = None
    if not (choices and all(isinstance(each, list) for each in choices)) or not all(
        type(number) is int for each in choices for number in each
    ):
        raise ValueError("like {0, 0}, {0, 1}")
    return [[int(number) for number in each] for each in choices]


_PARSERS: dict[str, Parser] = {
    "gpt_model_type": one_of(_BATCHING_TYPES),
    "batch_scheduler_policy": one_of(_POLICIES),
    "decoding_mode": one_of(_DECODING_MODES),
    "max_beam_width": integer(1),
    "max_batch_size": integer(1),
    "max_queue_size": integer(0),
    "max_tokens_in_paged_kv_cache": integer(1),
    "max_attention_window_size": _integers,
    "sink_token_length": integer(0),
    "kv_cache_free_gpu_mem_fraction": fraction,
    "cross_kv_cache_fraction": fraction,
    "kv_cache_host_memory_bytes": integer(0),
    "kv_cache_onboard_blocks": switch,
    "enable_kv_cache_reuse": switch,
    "enable_chunked_context": switch,
    "normalize_log_probs": switch,
    "gpu_device_ids": _integers,
    "lora_cache_optimal_adapter_size": integer(1),
    "lora_cache_max_adapter_size": integer(1),
    "lora_cache_gpu_memory_fraction": fraction,
    "lora_cache_host_memory_bytes": integer(0),
    "medusa_choices": _choices,
    "eagle_choices": _choices,
    "gpu_weights_percent": fraction,
    "multi_block_mode": switch,
    "enable_context_fmha_fp32_acc": switch,
    "cuda_graph_mode": switch,
    "cuda_graph_cache_size": integer(0),
    "iter_stats_max_iterations": integer(1),
    "request_stats_max_iterations": integer(0),
    "speculative_decoding_fast_logits": switch,
    "guided_decoding_backend": one_of({"xgrammar": "XGRAMMAR"}),
}

_EXECUTOR = (
    *("max_beam_width", "max_batch_size", "max_queue_size", "normalize_log_probs"),
    *("iter_stats_max_iterations", "request_stats_max_iterations", "gpu_weights_percent"),
)
_KV_CACHE = {
    "enable_kv_cache_reuse": "enable_block_reuse",
    "max_tokens_in_paged_kv_cache": "max_tokens",
    "max_attention_window_size": "max_attention_window",
    "sink_token_length": "sink_token_length",
    "kv_cache_free_gpu_mem_fraction": "free_gpu_memory_fraction",
    "kv_cache_host_memory_bytes": "host_cache_size",
    "kv_cache_onboard_blocks": "onboard_blocks",
    "cross_kv_cache_fraction": "cross_kv_cache_fraction",
}
"""Cache options. The smaller of ``max_tokens`` and the fraction of free memory (default: 0.9) applies."""
_PEFT_CACHE = {
    "lora_cache_optimal_adapter_size": "optimal_adapter_size",
    "lora_cache_max_adapter_size": "max_adapter_size",
    "lora_cache_gpu_memory_fraction": "device_cache_percent",
    "lora_cache_host_memory_bytes": "host_cache_size",
}
_PERF_KNOBS = {"multi_block_mode", "enable_context_fmha_fp32_acc", "cuda_graph_mode", "cuda_graph_cache_size"}
_FOR_OTHERS = {
    *("FORCE_CPU_ONLY_INPUT_TENSORS", "cancellation_check_period_ms", "stats_check_period_ms"),
    "engine_cache_dir",
}
"""Options that Triton, the slot or the engine server reads, or that every engine gets."""


def parse_options(options: Mapping[str, str]) -> Options:
    """Parse options; empty ones count as absent. Raises E1006, also for one that this kind does not have."""
    for name, text in options.items():
        if text and name not in _PARSERS and name not in _FOR_OTHERS:
            raise InvalidSetting(name=name, expected="left out for a tensorrt_llm engine", value=text)
    return protocol.parse_options(options, _PARSERS)


def is_chunked(options: Options, compiled: CompiledConfig) -> bool:
    """Return True if long prompts are processed in chunks, between steps of other requests.

    NOTE: always passed to the executor, because the library's defaults differ: on in C++ (for engines built
    for it), off in its Python bindings.
    """
    return bool(options.get("enable_chunked_context", compiled.has_paged_context))


def executor_config(bindings: Any, options: Options, compiled: CompiledConfig) -> Any:
    """Make it from ``tensorrt_llm.bindings.executor``. Raises E1006 for what the engine was not built for."""
    _check_engine_can(options, compiled)
    knobs = bindings.ExtendedRuntimePerfKnobConfig()
    for name in options.keys() & _PERF_KNOBS:
        setattr(knobs, name, options[name])
    scheduler = {}
    if "batch_scheduler_policy" in options:
        policy = getattr(bindings.CapacitySchedulerPolicy, options["batch_scheduler_policy"])
        scheduler["capacity_scheduler_policy"] = policy
    config = bindings.ExecutorConfig(
        scheduler_config=bindings.SchedulerConfig(**scheduler),
        kv_cache_config=bindings.KvCacheConfig(**_given(options, _KV_CACHE)),
        enable_chunked_context=is_chunked(options, compiled),
        peft_cache_config=bindings.PeftCacheConfig(**_given(options, _PEFT_CACHE)),
        extended_runtime_perf_knob_config=knobs,
        **{name: options[name] for name in _EXECUTOR if name in options},
    )
    if "gpt_model_type" in options:
        config.batching_type = getattr(bindings.BatchingType, options["gpt_model_type"])
    if "gpu_device_ids" in options:
        config.parallel_config = bindings.ParallelConfig(device_ids=options["gpu_device_ids"])
    if (decoding := _decoding_config(bindings, options)) is not None:
        config.decoding_config = decoding
    if "speculative_decoding_fast_logits" in options:
        fast = options["speculative_decoding_fast_logits"]
        config.spec_dec_config = bindings.SpeculativeDecodingConfig(fast_logits=fast)
    return config


def _given(options: Options, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that were given, by the library's names. Others keep the library's own default."""
    return {argument: options[name] for name, argument in arguments.items() if name in options}


def _check_engine_can(options: Options, compiled: CompiledConfig) -> None:
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if options.get(name) and not compiled.has_paged_context:
            expected = "false, or the engine built with --use_paged_context_fmha enable"
            raise InvalidSetting(name=name, expected=expected, value="true")
    if (width := options.get("max_beam_width", 1)) > compiled.max_beam_width:
        expected = f"at most {compiled.max_beam_width}, the --max_beam_width of the engine's build"
        raise InvalidSetting(name="max_beam_width", expected=expected, value=width)
    devices = options.get("gpu_device_ids")
    if devices is not None and len(devices) != compiled.world_size:
        expected = f"{compiled.world_size} device ids, one for each rank of the engine"
        raise InvalidSetting(name="gpu_device_ids", expected=expected, value=devices)


def _decoding_config(bindings: Any, options: Options) -> Any | None:
    arguments = {}
    if "medusa_choices" in options:
        arguments["medusa_choices"] = options["medusa_choices"]
    if "decoding_mode" in options:
        arguments["decoding_mode"] = getattr(bindings.DecodingMode, options["decoding_mode"])()
    if "eagle_choices" in options:
        arguments["eagle_config"] = bindings.EagleConfig(options["eagle_choices"])
    return bindings.DecodingConfig(**arguments) if arguments else None


def guided_decoding_config(bindings: Any, engine_dir: Path) -> Any:
    """Configure XGrammar inside the executor. Raises the tokenizer library's errors for an invalid file."""
    tokenizer = Tokenizer.from_file(str(engine_dir / "tokenizer.json"))
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    # Only the first: it is the end id of requests.
    stop_token_ids = read_end_ids(engine_dir, tokenizer)[:1]
    return bindings.GuidedDecodingConfig(
        bindings.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
        # Tokens by id; unused ids have none.
        encoded_vocab=[tokens.get(token_id, "") for token_id in range(max(tokens) + 1)],
        tokenizer_str=tokenizer.to_str(),
        stop_token_ids=list(stop_token_ids) or None,
    )
