"""What a text is generated from: the prompt, lengths, and how tokens are chosen."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.engines.protocol.messages import SEEDS, Guide
from runner.observability.summary import RequestSummary

_GREEDY = 1


def random_seed() -> int:
    """For who gives none. No secret, and asking the system for random bits takes a hundred times longer."""
    return random.randrange(SEEDS)


@dataclass(frozen=True)
class SamplingInputs:
    """How to choose tokens, in the caller's terms. ``top_k`` below 1 and ``top_p`` of 0 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == _GREEDY or (self.top_k < 1 and self.top_p <= 0)


@dataclass(frozen=True)
class GenerationRequest:
    """A request whose inputs were checked one by one. Lengths are in tokens."""

    prompt: str | Sequence[int]
    """A text, or its token ids."""
    max_tokens: int
    min_tokens: int
    stop_sequences: Sequence[str]
    sampling: SamplingInputs
    guide: Guide | None = None
    """What the output must follow."""
    adds_special_tokens: bool = True
    """To a text, as the tokenizer does; a chat template has put them in already."""
    ignores_end: bool = False
    """No token ends the text."""
    num_top_log_probs: int | None = None
    """Tell each output token's log probability, and those of so many of the likeliest; None: neither."""
    lora_name: str | None = None
    """An adapter of the engine; None: the model alone."""

    def summary(self) -> RequestSummary:
        """What may be traced of it."""
        sampling = self.sampling
        return RequestSummary(
            max_tokens=self.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=sampling.seed,
        )
