"""From a request and its token ids to the slot's input tensors."""

from __future__ import annotations

from typing import Any

from errors.requests import PromptTooLong
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest, SamplingInputs

_GREEDY_TOP_K = 1
_MAX_INT32 = (1 << 31) - 1
"""NOTE: Triton drops the upper bits of larger numbers."""


def slot_inputs(request: GenerationRequest, model: ModelFacts, input_ids: list[int]) -> dict[str, Any]:
    """The slot's tensors by name, without those that have the slot's default: each tensor costs some time.

    Raises E1002 if the prompt is too long.
    """
    if len(input_ids) > model.max_input_length:
        raise PromptTooLong(prompt_tokens=len(input_ids), max_input_tokens=model.max_input_length)
    room = model.max_sequence_length - len(input_ids)
    sampling = request.sampling
    inputs: dict[str, Any] = {
        "input_ids": input_ids,
        "input_lengths": len(input_ids),
        "request_output_len": min(request.max_tokens, room),
        "pad_id": model.pad_id,
        "streaming": True,
        "exclude_input_in_output": True,
    }
    with_defaults = (
        ("min_length", min(request.min_tokens, room), 0),
        ("temperature", sampling.temperature or 1.0, 1.0),
        ("len_penalty", sampling.length_penalty, 1.0),
        ("presence_penalty", sampling.presence_penalty, 0.0),
        ("frequency_penalty", sampling.frequency_penalty, 0.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
        ("min_p", sampling.min_p, 0.0),
    )
    inputs |= {name: value for name, value, default in with_defaults if value != default}
    if not request.ignores_end:
        inputs["end_id"] = model.end_ids[0]
    if request.guide is not None:
        inputs["guided_decoding_guide_type"] = request.guide.type
        if request.guide.text:
            inputs["guided_decoding_guide"] = request.guide.text
    if sampling.logit_bias:
        inputs["logit_bias_ids"] = list(sampling.logit_bias)
        inputs["logit_bias_values"] = list(sampling.logit_bias.values())
    if request.num_top_log_probs is not None:
        inputs["return_log_probs"] = True
    if request.num_top_log_probs:
        inputs["num_top_log_probs"] = request.num_top_log_probs
    if request.lora_name is not None:
        inputs["lora_name"] = request.lora_name
    return inputs | _choice(sampling)


def _choice(sampling: SamplingInputs) -> dict[str, Any]:
    if sampling.is_greedy:
        return {"runtime_top_k": _GREEDY_TOP_K}
    choice: dict[str, Any] = {"random_seed": sampling.seed}
    if sampling.top_k > 0:
        choice["runtime_top_k"] = min(sampling.top_k, _MAX_INT32)
    if sampling.top_p > 0:
        choice["runtime_top_p"] = sampling.top_p
    return choice
