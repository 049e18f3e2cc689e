"""Stand-in for ``tensorrt_llm.sampling_params``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .typed import check_fields


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    beam_search_diversity_rate: float | None = None
    early_stopping: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    end_id: int | None = None
    pad_id: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    top_p_decay: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    bad: Any = None
    bad_token_ids: list[int] | None = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    embedding_bias: Any = None
    lookahead_config: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    additional_model_outputs: list[str] | None = None
    return_perf_metrics: bool = False
    beam_width_array: list[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
