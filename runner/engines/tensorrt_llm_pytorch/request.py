"""Conversion of a ``Submit`` to the LLM API's parameters, and the state of a running request.

NOTE: importing this module imports ``tensorrt_llm``, which initializes MPI.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tensorrt_llm import SamplingParams
from tensorrt_llm.llmapi import GuidedDecodingParams

from errors.requests import PromptTooLong, UnsupportedArgument
from runner.engines.adapters import LoraRequest
from runner.engines.protocol.messages import (
    ANY_JSON,
    MIN_LOG_PROB,
    FinishReason,
    Guide,
    Sampling,
    Submit,
    TokenLogProb,
)
from runner.engines.protocol.words import Words
from runner.engines.tensorrt_llm_pytorch.arguments import ENGINE_KIND
from runner.engines.tensorrt_llm_pytorch.interface import SINCE

_SEED_BITS = 64


def check(request: Submit, prompt_limit: int, optional: frozenset[str]) -> None:
    """Raise E1002 or E1104 for a request that the LLM API does not serve.

    ``optional``: the arguments of ``interface.SINCE`` that the library has.
    """
    if request.cache_salt is not None and "cache_salt" not in optional:
        remedy = f"leave it out, or install TensorRT-LLM {SINCE['cache_salt']} or later"
        raise UnsupportedArgument(name="cache_salt", value="given", engine_kind=ENGINE_KIND, remedy=remedy)
    if len(request.input_ids) > prompt_limit:
        raise PromptTooLong(prompt_tokens=len(request.input_ids), max_input_tokens=prompt_limit)
    if long := [word for word in request.bad_words if len(word) > 1]:
        remedy = "leave out words of several tokens: TensorRT-LLM's LLM API forbids single tokens alone"
        raise UnsupportedArgument(
            name="bad_words_list", value=long[0], engine_kind=ENGINE_KIND, remedy=remedy
        )


def sampling_params(request: Submit, vocab_size: int, guide_end_id: int | None) -> SamplingParams:
    """Make the parameters, without the guide. If guided, the output also ends at ``guide_end_id``.

    All sampling fields are given: the library may take a missing one from the model's files.
    """
    sampling = request.sampling
    stop_ids = [
        *engine_stop_ids(request),
        *([guide_end_id] if request.guide and guide_end_id is not None else []),
    ]
    return SamplingParams(
        max_tokens=request.max_tokens,
        min_tokens=min(request.min_tokens, request.max_tokens),
        # NOTE: without a tokenizer the library needs an end id, also to ignore it.
        end_id=request.end_id or 0,
        ignore_eos=request.end_id is None,
        pad_id=request.pad_id,
        stop_token_ids=sorted(set(stop_ids)) or None,
        # NOTE: otherwise a stop token disappears from the output after it was streamed.
        include_stop_str_in_output=True,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        **_choice(sampling),
        embedding_bias=_bias(request, vocab_size),
        # NOTE: some versions return nothing for 0.
        logprobs=max(1, request.num_top_log_probs) if request.wants_log_probs else None,
        detokenize=False,
    )


def probe_params() -> SamplingParams:
    """Make the parameters of a request of one token."""
    return SamplingParams(max_tokens=1, end_id=0, ignore_eos=True, top_k=1, detokenize=False)


def _choice(sampling: Sampling) -> dict[str, Any]:
    if sampling.is_greedy or sampling.top_p == 0:
        return {"top_k": 1, "top_p": 1.0, "temperature": 1.0, "min_p": 0.0}
    return {
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "temperature": sampling.temperature,
        "min_p": sampling.min_p,
        # NOTE: the library's default is always the same seed.
        "seed": secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed,
    }


def _bias(request: Submit, vocab_size: int) -> Any:
    """Return the bias of each token of the vocabulary, as a tensor; None without any.

    It also forbids bad words: NVIDIA does not list ``bad_token_ids`` among its sampler's features.
    """
    biases = request.sampling.logit_bias | {word[0]: -math.inf for word in request.bad_words}
    if not biases:
        return None
    import torch

    tensor = torch.zeros(vocab_size, dtype=torch.float32)
    tensor[list(biases)] = torch.tensor(list(biases.values()), dtype=torch.float32)
    return tensor


def engine_stop_ids(request: Submit) -> list[int]:
    """Return the stop words that the library searches: single tokens, unless there is a ``min_tokens``.

    The library forbids the end token until then, but no stop token.
    """
    return [] if request.min_tokens else [word[0] for word in request.stop_words if len(word) == 1]


def guided_decoding(guide: Guide, backend: str) -> GuidedDecodingParams:
    """Make the guide's parameters. Raises ValueError for a grammar that can't be converted."""
    match guide:
        case Guide(type="json" | "json_schema", text=text):
            return GuidedDecodingParams(json=text or ANY_JSON)
        case Guide(type="regex", text=text):
            return GuidedDecodingParams(regex=text)
    if backend != "llguidance":
        return GuidedDecodingParams(grammar=guide.text)
    from runner.engines.guides.gbnf import llguidance_grammar

    # NOTE: with llguidance the library takes a grammar in Lark, not in GBNF.
    return GuidedDecodingParams(grammar=llguidance_grammar(guide.text))


def relative_priority(priority: int) -> float:
    """Return the library's priority, from 0 to 1: higher values begin earlier, 0.5 is the default."""
    return 0.5 - priority / (1 + abs(priority)) / 2


class Running:
    """A running request."""

    __slots__ = (
        "_end_ids",
        "_num_top",
        "_tokens",
        "_words",
        "aborted_for",
        "has_begun",
        "lora",
        "lora_name",
        "min_tokens",
        "request_id",
        "result",
    )

    def __init__(self, request: Submit, guide_end_id: int | None, lora: LoraRequest | None) -> None:
        self.request_id = request.request_id
        self.lora, self.lora_name = lora, request.lora_name
        self.has_begun = False
        """True once the library has computed its prompt."""
        self.result: Any = None
        """The library's ``RequestOutput``; None until it has the request."""
        self.aborted_for: FinishReason | None = None
        """Reason, if the request ends before the library ends it: cancelled, or at a stop word."""
        self.min_tokens = request.min_tokens
        self._end_ids = {None, request.end_id, guide_end_id if request.guide else None}
        by_engine = engine_stop_ids(request)
        words = [word for word in request.stop_words if not (len(word) == 1 and word[0] in by_engine)]
        self._words = Words(words) if words else None
        self._tokens: list[int] = []
        self._num_top = request.num_top_log_probs if request.wants_log_probs else None

    def take(self, output: Any) -> tuple[list[int], list[TokenLogProb], bool]:
        """Return the tokens that are new in a ``CompletionOutput``, and their log probabilities if wanted.

        The tokens end with a stop word that is searched here; the last value is True then.
        """
        start, is_stopped = len(self._tokens), False
        for token in output.token_ids[start:]:
            self._tokens.append(token)
            count = len(self._tokens)
            if self._words is not None and count > self.min_tokens and self._words.end(self._tokens):
                is_stopped = True
                break
        new = self._tokens[start:]
        if self._num_top is None:
            return new, [], is_stopped
        # NOTE: the list ends with the last token. Whether it begins with the first depends on the version.
        first = start + len(output.logprobs) - len(output.token_ids)
        rows = output.logprobs[first : first + len(new)]
        log_probs = [_token_log_prob(*pair, self._num_top) for pair in zip(new, rows, strict=True)]
        return new, log_probs, is_stopped

    def reason(self, output: Any) -> FinishReason | None:
        """Return the finish reason; None if the library gave the request up."""
        if self.aborted_for is not None:
            return self.aborted_for
        if output.finish_reason == "stop":
            return "end" if output.stop_reason in self._end_ids else "stop"
        return "length" if output.finish_reason == "length" else None


def _token_log_prob(token: int, row: Mapping[int, Any], num_top: int) -> TokenLogProb:
    """Convert a row: the likeliest tokens, and the chosen one."""
    values = {each: max(entry.logprob, MIN_LOG_PROB) for each, entry in row.items()}
    likeliest: Sequence[tuple[int, float]] = sorted(values.items(), key=lambda each: -each[1])
    return TokenLogProb(values.get(token, MIN_LOG_PROB), list(likeliest[:num_top]))
