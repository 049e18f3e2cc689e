"""Requests and what is in them. Deprecated names, which log a warning for each request, are left out."""

from __future__ import annotations

from enum import Enum

from ._pybind import (
    Arg,
    Bound,
    boolean,
    check,
    f32,
    i32,
    instance,
    list_of,
    optional,
    tensor,
    text,
    u64,
)


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
        Arg("temperature", optional(f32), None),
        Arg("min_tokens", optional(i32), None),
        Arg("beam_search_diversity_rate", optional(f32), None),
        Arg("repetition_penalty", optional(f32), None),
        Arg("presence_penalty", optional(f32), None),
        Arg("frequency_penalty", optional(f32), None),
        Arg("length_penalty", optional(f32), None),
        Arg("early_stopping", optional(i32), None),
    )

    def check(self) -> None:
        values = self._values
        check(values["beam_width"] > 0, "beamWidth > 0")
        at_least_zero = "top_k top_p_reset_ids temperature min_tokens beam_search_diversity_rate"
        for name in at_least_zero.split():
            check(values[name] is None or values[name] >= 0, f"{name} >= 0")
        for name in ("top_p", "top_p_decay"):
            check(values[name] is None or 0 < values[name] <= 1, f"{name} > 0.f and <= 1.f")
        check(values["top_p_min"] is None or 0 <= values["top_p_min"] <= 1, "top_p_min >= 0.f and <= 1.f")
        penalty = values["repetition_penalty"]
        check(penalty is None or penalty > 0, "repetition_penalty > 0")


class OutputConfig(Bound):
    ARGS = (
        Arg("return_log_probs", boolean, False),
        Arg("exclude_input_from_output", boolean, False),
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


class LoraConfig(Bound):
    READ_ONLY = True
    ARGS = (
        Arg("task_id", u64),
        Arg("weights", optional(tensor), None),
        Arg("config", optional(tensor), None),
    )


class GuidedDecodingParams(Bound):
    class GuideType(Enum):
        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3

    READ_ONLY = True
    ARGS = (Arg("guide_type", instance(GuideType)), Arg("guide", optional(text), None))


class Request(Bound):
    POSITIONAL = 1
    ARGS = (
        Arg("input_token_ids", list_of(i32)),
        Arg("max_tokens", optional(i32), None),
        Arg("streaming", boolean, False),
        Arg("sampling_config", instance(SamplingConfig), SamplingConfig),
        Arg("output_config", instance(OutputConfig), OutputConfig),
        Arg("end_id", optional(i32), None),
        Arg("pad_id", optional(i32), None),
        Arg("bad_words", optional(list_of(list_of(i32))), None),
        Arg("stop_words", optional(list_of(list_of(i32))), None),
        Arg("embedding_bias", optional(tensor), None),
        Arg("external_draft_tokens_config", optional(instance(ExternalDraftTokensConfig)), None),
        Arg("prompt_tuning_config", optional(instance(PromptTuningConfig)), None),
        Arg("lora_config", optional(instance(LoraConfig)), None),
        Arg("guided_decoding_params", optional(instance(GuidedDecodingParams)), None),
    )

    def check(self) -> None:
        values = self._values
        check(values["max_tokens"] is not None, "missing required argument max_tokens")
        check(bool(values["input_token_ids"]), "!mInputTokenIds.empty()")
        check(values["max_tokens"] > 0, "mMaxNewTokens > 0")
