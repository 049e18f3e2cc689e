"""From the slot's parameters, by NVIDIA's names, to TensorRT-LLM's ``ExecutorConfig``.

Names and meanings are those of the ``tensorrt_llm`` model of NVIDIA's backend 0.16 (its ``model.py``), except
that a value that does not parse is E1006 here, and there is dropped with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from engine.tensorrt_llm_config import CompiledConfig
from errors.settings import InvalidSetting

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


def _integer(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= minimum):
            raise ValueError(f"a whole number of at least {minimum}")
        return int(text)

    return parse


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return value


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError("true or false")
    return text.lower() in ("true", "1")


def _integers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError("whole numbers with commas between them")
    return [int(part) for part in parts]


def _choices(text: str) -> list[list[int]]:
    """``{0, 0}, {0, 1}``."""
    try:
        choices = json.loads(f"[{text.replace('{', '[').replace('}', ']')}]")
    except ValueError:
        choices = None
    if not (choices and all(isinstance(each, list) for each in choices)) or not all(
        type(number) is int for each in choices for number in each
    ):
        raise ValueError("like {0, 0}, {0, 1}")
    return [[int(number) for number in each] for each in choices]


def _one_of(names: Mapping[str, str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return names[text.lower()]

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "gpt_model_type": _one_of(_BATCHING_TYPES),
    "batch_scheduler_policy": _one_of(_POLICIES),
    "decoding_mode": _one_of(_DECODING_MODES),
    "max_beam_width": _integer(1),
    "max_batch_size": _integer(1),
    "max_queue_size": _integer(0),
    "max_tokens_in_paged_kv_cache": _integer(1),
    "max_attention_window_size": _integers,
    "sink_token_length": _integer(0),
    "kv_cache_free_gpu_mem_fraction": _fraction,
    "cross_kv_cache_fraction": _fraction,
    "kv_cache_host_memory_bytes": _integer(0),
    "kv_cache_onboard_blocks": _switch,
    "enable_kv_cache_reuse": _switch,
    "enable_chunked_context": _switch,
    "normalize_log_probs": _switch,
    "gpu_device_ids": _integers,
    "lora_cache_optimal_adapter_size": _integer(1),
    "lora_cache_max_adapter_size": _integer(1),
    "lora_cache_gpu_memory_fraction": _fraction,
    "lora_cache_host_memory_bytes": _integer(0),
    "medusa_choices": _choices,
    "eagle_choices": _choices,
    "gpu_weights_percent": _fraction,
    "multi_block_mode": _switch,
    "enable_context_fmha_fp32_acc": _switch,
    "cuda_graph_mode": _switch,
    "cuda_graph_cache_size": _integer(0),
    "iter_stats_max_iterations": _integer(1),
    "request_stats_max_iterations": _integer(0),
    "speculative_decoding_fast_logits": _switch,
    "guided_decoding_backend": _one_of({"xgrammar": "XGRAMMAR"}),
}

_FOR_OTHERS = {
    *("FORCE_CPU_ONLY_INPUT_TENSORS", "cancellation_check_period_ms", "stats_check_period_ms"),
    "engine_cache_dir",
}
"""Parameters that Triton, the slot and the worker read, or that every engine is told and may not need."""


def parse_options(options: Mapping[str, str]) -> Options:
    """Empty values count as not given; one that this kind has no meaning for is E1006."""
    parsed: dict[str, Any] = {}
    for name, text in options.items():
        if name in _FOR_OTHERS or not text:
            continue
        if name not in _PARSERS:
            raise InvalidSetting(name=name, expected="left out for a tensorrt_llm engine", value=text)
        try:
            parsed[name] = _PARSERS[name](text)
        except ValueError as exc:
            raise InvalidSetting(name=name, expected=str(exc), value=text) from exc
    return parsed


def is_chunked(options: Options, compiled: CompiledConfig) -> bool:
    """Whether long prompts are taken in chunks, between steps of the others.

    NOTE: decided here and always told to the executor: the library's C++ default is on (where the engine was
    built for it), that of its Python bindings is off.
    """
    return bool(options.get("enable_chunked_context", compiled.has_paged_context))


def executor_config(bindings: Any, options: Options, compiled: CompiledConfig) -> Any:
    """``bindings`` is ``tensorrt_llm.bindings.executor``. E1006 for what the engine was not built for."""
    _check_engine_can(options, compiled)
    config = bindings.ExecutorConfig(
        scheduler_config=_scheduler_config(bindings, options),
        kv_cache_config=_kv_cache_config(bindings, options),
        enable_chunked_context=is_chunked(options, compiled),
        peft_cache_config=_peft_cache_config(bindings, options),
        extended_runtime_perf_knob_config=_perf_knobs(bindings, options),
        **_given(
            options,
            max_beam_width="max_beam_width",
            max_batch_size="max_batch_size",
            max_queue_size="max_queue_size",
            normalize_log_probs="normalize_log_probs",
            iter_stats_max_iterations="iter_stats_max_iterations",
            request_stats_max_iterations="request_stats_max_iterations",
            gpu_weights_percent="gpu_weights_percent",
        ),
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


def _given(options: Options, **names: str) -> dict[str, Any]:
    """The arguments whose option was given: what was not keeps the library's own default."""
    return {argument: options[name] for argument, name in names.items() if name in options}


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


def _scheduler_config(bindings: Any, options: Options) -> Any:
    if "batch_scheduler_policy" not in options:
        return bindings.SchedulerConfig()
    return bindings.SchedulerConfig(
        capacity_scheduler_policy=getattr(bindings.CapacitySchedulerPolicy, options["batch_scheduler_policy"])
    )


def _kv_cache_config(bindings: Any, options: Options) -> Any:
    """NOTE: of ``max_tokens`` and the fraction of the free memory (by default 0.9) the smaller counts."""
    return bindings.KvCacheConfig(
        **_given(
            options,
            enable_block_reuse="enable_kv_cache_reuse",
            max_tokens="max_tokens_in_paged_kv_cache",
            max_attention_window="max_attention_window_size",
            sink_token_length="sink_token_length",  # noqa: S106
            free_gpu_memory_fraction="kv_cache_free_gpu_mem_fraction",
            host_cache_size="kv_cache_host_memory_bytes",
            onboard_blocks="kv_cache_onboard_blocks",
            cross_kv_cache_fraction="cross_kv_cache_fraction",
        )
    )


def _peft_cache_config(bindings: Any, options: Options) -> Any:
    return bindings.PeftCacheConfig(
        **_given(
            options,
            optimal_adapter_size="lora_cache_optimal_adapter_size",
            max_adapter_size="lora_cache_max_adapter_size",
            device_cache_percent="lora_cache_gpu_memory_fraction",
            host_cache_size="lora_cache_host_memory_bytes",
        )
    )


def _perf_knobs(bindings: Any, options: Options) -> Any:
    knobs = bindings.ExtendedRuntimePerfKnobConfig(
        **_given(
            options,
            multi_block_mode="multi_block_mode",
            enable_context_fmha_fp32_acc="enable_context_fmha_fp32_acc",
        )
    )
    # NOTE: these two are properties alone; as arguments they are a TypeError.
    for name in ("cuda_graph_mode", "cuda_graph_cache_size"):
        if name in options:
            setattr(knobs, name, options[name])
    return knobs


def _decoding_config(bindings: Any, options: Options) -> Any | None:
    arguments = _given(options, medusa_choices="medusa_choices")
    if "decoding_mode" in options:
        arguments["decoding_mode"] = getattr(bindings.DecodingMode, options["decoding_mode"])()
    if "eagle_choices" in options:
        arguments["eagle_config"] = bindings.EagleConfig(options["eagle_choices"])
    return bindings.DecodingConfig(**arguments) if arguments else None
