"""Conversion of a request and its token ids to the message for the engine server."""

from __future__ import annotations

from ctypes import c_float
from typing import TYPE_CHECKING

import msgspec

from errors.requests import PromptTooLong
from runner.engines.protocol.checks import MAX_WORDS
from runner.engines.protocol.messages import Sampling, Submit

if TYPE_CHECKING:  # The Dynamo worker's environment lacks the tokenizer's library that they import.
    from runner.generation.model import ModelFacts
    from runner.generation.request import GenerationRequest

_GREEDY = 1
_FLOATS = ("length_penalty", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p")
_MAX_TOP_K = (1 << 31) - 1


def submit_message(request: GenerationRequest, model: ModelFacts, input_ids: list[int]) -> Submit:
    """Make the message. Cut lengths to the room in the sequence. Raises E1002 if the prompt is too long."""
    if len(input_ids) > model.max_input_length:
        raise PromptTooLong(prompt_tokens=len(input_ids), max_input_tokens=model.max_input_length)
    if request.embeds:
        return Submit(
            request_id=0, input_ids=input_ids, max_tokens=0, lora_name=request.lora_name, embeds=True
        )
    max_tokens = min(request.max_tokens, model.max_sequence_length - len(input_ids))
    return Submit(
        request_id=0,
        input_ids=input_ids,
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens, max_tokens),
        sampling=engine_sampling(request.sampling),
        end_id=None if request.ignores_end else model.end_ids[0],
        pad_id=model.pad_id,
        stop_words=_stop_words(request, model),
        guide=request.guide,
        lora_name=request.lora_name,
        cache_salt=request.cache_salt,
        priority=request.priority or 0,
        max_queue_ms=request.max_queue_ms,
        wants_log_probs=request.num_top_log_probs is not None,
        num_top_log_probs=request.num_top_log_probs or 0,
        images=list(request.images),
    )


def _stop_words(request: GenerationRequest, model: ModelFacts) -> list[list[int]]:
    """Return the tokens that end a text, beside the engine's end id, once ``min_tokens`` are there."""
    ids = [] if request.ignores_end else [*model.end_ids[1:]]
    if request.stop_token_ids and request.min_tokens:
        vocab_size = model.tokenizer.get_vocab_size()
        ids += [each for each in request.stop_token_ids if each < vocab_size]
    return [[each] for each in dict.fromkeys(ids)][:MAX_WORDS]


def engine_sampling(given: Sampling) -> Sampling:
    """Convert a client's values: ``top_k`` below 1 and ``top_p`` of 0 mean no limit."""
    is_greedy = given.is_greedy
    return msgspec.structs.replace(
        given,
        **{name: _float32(getattr(given, name)) for name in _FLOATS},
        temperature=_float32(given.temperature or 1.0),
        top_k=_GREEDY if is_greedy else min(max(given.top_k, 0), _MAX_TOP_K),
        top_p=1.0 if is_greedy or given.top_p <= 0 else _float32(given.top_p),
        logit_bias={token: _float32(bias) for token, bias in given.logit_bias.items()},
        seed=None if is_greedy else given.seed,
    )


def _float32(value: float) -> float:
    """Round as engines do: 1e300 is infinite, which they reject, and 1e-60 is 0."""
    return c_float(value).value
