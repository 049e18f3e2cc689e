"""Requests and what is in them. Deprecated names still work and log a warning for each request."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

from ._config import EagleConfig, LookaheadDecodingConfig
from ._pybind import (
    Arg,
    Bound,
    boolean,
    check,
    f32,
    i32,
    instance,
    list_of,
    milliseconds,
    optional,
    tensor,
    text,
    u64,
)


class RequestType(Enum):
    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


def _warn(text: str) -> None:
    print(f"[TensorRT-LLM][WARNING] {text}", file=sys.stderr, flush=True)


def _take_deprecated(values: dict[str, Any], old: str, new: str) -> None:
    if values[old] is not None:
        _warn(f"{old} is being deprecated; please use {new} instead.")
        if values[new] is None:
            values[new] = values[old]


class SamplingConfig(Bound):
    POSITIONAL = 1
    ARGS = (
        Arg("beam_width", i32, 1),
        Arg("top_k", optional(i32), None),
        Arg("top_p", optional(f32), None),
        Arg("top_p_min", optional(f32), None),
        Arg("top_p_reset_ids", optional(i32), None),
        Arg("top_p_decay", optional(f32), None),
        Arg("seed", optional(u64), None),
        Arg("random_seed", optional(u64), None),
        Arg("temperature", optional(f32), None),
        Arg("min_tokens", optional(i32), None),
        Arg("min_length", optional(i32), None),
        Arg("beam_search_diversity_rate", optional(f32), None),
        Arg("repetition_penalty", optional(f32), None),
        Arg("presence_penalty", optional(f32), None),
        Arg("frequency_penalty", optional(f32), None),
        Arg("length_penalty", optional(f32), None),
        Arg("early_stopping", optional(i32), None),
        Arg("no_repeat_ngram_size", optional(i32), None),
        Arg("num_return_sequences", optional(i32), None),
    )

    def check(self) -> None:
        values = self._values
        _take_deprecated(values, "random_seed", "seed")
        _take_deprecated(values, "min_length", "min_tokens")
        check(values["beam_width"] > 0, "beamWidth > 0")
        at_least_zero = (
            "top_k",
            "top_p_reset_ids",
            "temperature",
            "min_tokens",
            "beam_search_diversity_rate",
        )
        for name in at_least_zero:
            check(values[name] is None or values[name] >= 0, f"{name} >= 0")
        for name in ("top_p", "top_p_decay"):
            check(values[name] is None or 0 < values[name] <= 1, f"{name} > 0.f and <= 1.f")
        check(values["top_p_min"] is None or 0 <= values["top_p_min"] <= 1, "top_p_min >= 0.f and <= 1.f")
        for name in ("repetition_penalty", "no_repeat_ngram_size", "num_return_sequences"):
            check(values[name] is None or values[name] > 0, f"{name} > 0")
        count = values["num_return_sequences"]
        check(
            count is None or values["beam_width"] == 1 or count <= values["beam_width"],
            "beamWidth == 1 || numReturnSequences.value() <= beamWidth",
        )


class OutputConfig(Bound):
    ARGS = (
        Arg("return_log_probs", boolean, False),
        Arg("return_context_logits", boolean, False),
        Arg("return_generation_logits", boolean, False),
        Arg("exclude_input_from_output", boolean, False),
        Arg("return_encoder_output", boolean, False),
        Arg("return_perf_metrics", boolean, False),
    )


class ExternalDraftTokensConfig(Bound):
    READ_ONLY = True
    ARGS = (
        Arg("tokens", list_of(i32)),
        Arg("logits", optional(tensor), None),
        Arg("acceptance_threshold", optional(f32), None),
        Arg("fast_logits", optional(boolean), None),
    )


class PromptTuningConfig(Bound):
    READ_ONLY = True
    ARGS = (Arg("embedding_table", tensor), Arg("input_token_extra_ids", optional(list_of(u64)), None))


class MropeConfig(Bound):
    READ_ONLY = True
    ARGS = (Arg("mrope_rotary_sin_cos", tensor), Arg("mrope_position_deltas", i32))


class LoraConfig(Bound):
    READ_ONLY = True
    ARGS = (
        Arg("task_id", u64),
        Arg("weights", optional(tensor), None),
        Arg("config", optional(tensor), None),
    )


class KvCacheRetentionConfig(Bound):
    class TokenRangeRetentionConfig(Bound):
        ARGS = (
            Arg("token_start", i32),
            Arg("token_end", optional(i32)),
            Arg("priority", i32),
            Arg("duration_ms", optional(milliseconds), None),
        )

    READ_ONLY = True
    ARGS = (
        Arg("token_range_retention_configs", list_of(instance(TokenRangeRetentionConfig))),
        Arg("decode_retention_priority", i32, 35),
        Arg("decode_duration_ms", optional(milliseconds), None),
    )


class ContextPhaseParams(Bound):
    ARGS = (Arg("first_gen_tokens", list_of(i32)), Arg("req_id", u64))


class GuidedDecodingParams(Bound):
    class GuideType(Enum):
        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3

    READ_ONLY = True
    ARGS = (Arg("guide_type", instance(GuideType)), Arg("guide", optional(text), None))


class Request(Bound):
    BATCHED_POST_PROCESSOR_NAME = "batched"
    POSITIONAL = 1
    ARGS = (
        Arg("input_token_ids", list_of(i32)),
        Arg("max_tokens", optional(i32), None),
        Arg("max_new_tokens", optional(i32), None),
        Arg("streaming", boolean, False),
        Arg("sampling_config", instance(SamplingConfig), SamplingConfig),
        Arg("output_config", instance(OutputConfig), OutputConfig),
        Arg("end_id", optional(i32), None),
        Arg("pad_id", optional(i32), None),
        Arg("position_ids", optional(list_of(i32)), None),
        Arg("bad_words", optional(list_of(list_of(i32))), None),
        Arg("stop_words", optional(list_of(list_of(i32))), None),
        Arg("embedding_bias", optional(tensor), None),
        Arg("external_draft_tokens_config", optional(instance(ExternalDraftTokensConfig)), None),
        Arg("prompt_tuning_config", optional(instance(PromptTuningConfig)), None),
        Arg("mrope_config", optional(instance(MropeConfig)), None),
        Arg("lora_config", optional(instance(LoraConfig)), None),
        Arg("lookahead_config", optional(instance(LookaheadDecodingConfig)), None),
        Arg("kv_cache_retention_config", optional(instance(KvCacheRetentionConfig)), None),
        Arg("logits_post_processor_name", optional(text), None),
        Arg("encoder_input_token_ids", optional(list_of(i32)), None),
        Arg("client_id", optional(u64), None),
        Arg("return_all_generated_tokens", boolean, False),
        Arg("priority", f32, 0.5),
        Arg("type", instance(RequestType), RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION),
        Arg("context_phase_params", optional(instance(ContextPhaseParams)), None),
        Arg("encoder_input_features", optional(tensor), None),
        Arg("encoder_output_length", optional(i32), None),
        Arg("cross_attention_mask", optional(tensor), None),
        Arg("eagle_config", optional(instance(EagleConfig)), None),
        Arg("skip_cross_attn_blocks", optional(tensor), None),
        Arg("guided_decoding_params", optional(instance(GuidedDecodingParams)), None),
    )
    EXTRA = (Arg("allotted_time_ms", optional(milliseconds), None),)

    def check(self) -> None:
        values = self._values
        _take_deprecated(values, "max_new_tokens", "max_tokens")
        check(values["max_tokens"] is not None, "missing required argument max_tokens")
        check(bool(values["input_token_ids"]), "!mInputTokenIds.empty()")
        check(values["max_tokens"] > 0, "mMaxNewTokens > 0")
        if values["streaming"] and values["sampling_config"].beam_width > 1:
            _warn("return_all_generated_tokens is forced for streaming with beam search.")
            values["return_all_generated_tokens"] = True
