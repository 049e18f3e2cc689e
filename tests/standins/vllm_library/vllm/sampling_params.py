"""Sampling parameters with vLLM's defaults and the bounds that its ``__post_init__`` checks."""

from __future__ import annotations

import dataclasses

import msgspec


@dataclasses.dataclass
class StructuredOutputsParams:
    json: str | None = None
    regex: str | None = None
    grammar: str | None = None
    _backend: str | None = dataclasses.field(default=None, init=False)


class SamplingParams(msgspec.Struct, omit_defaults=True, dict=True):
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    skip_clone: bool = False
    _bad_words_token_ids: list[list[int]] | None = None

    def __post_init__(self) -> None:
        for value in (self.presence_penalty, self.frequency_penalty):
            if not -2.0 <= value <= 2.0:
                raise ValueError(f"a penalty must be in [-2, 2], got {value}.")
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if self.min_tokens > (self.max_tokens or 0):
            raise ValueError("min_tokens must be less than or equal to max_tokens")
