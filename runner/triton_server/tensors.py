"""A request as the slot's tensors, and the slot's answers, in the JSON of Triton's HTTP API."""

from typing import Any, Literal, TypeVar

import msgspec

from engine.kinds import KINDS, argument_remedy
from errors.requests import UnsupportedArgument
from errors.triton import TritonMalformedEvent
from runner.engines.protocol.checks import NO_CHAT_FORM
from runner.engines.protocol.messages import GUIDE_TYPES, Sampling, Submit, TokenId, TokenLogProb

N = TypeVar("N", int, float)

_DEFAULTS = Sampling()
CPP_KIND = next(kind.name for kind in KINDS.values() if kind.has_cpp_backend)
_SAMPLING_TENSORS = {
    "temperature": "temperature",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "random_seed",
    "min_p": "min_p",
}
"""By the field of ``Sampling``."""


def tensors_of(submit: Submit) -> dict[str, Any]:
    """The tensors by name, without those that have the slot's default.

    Triton refuses inputs that the model does not have. Raises E1104 for what has no tensor, and for a guide
    that only our own engines follow.
    """
    salt = submit.cache_salt and "given"  # It may be secret.
    for name, value in (
        ("lora_name", submit.lora_name),
        ("cache_salt", salt),
        ("priority", submit.priority),
    ):
        if value:
            remedy = argument_remedy(CPP_KIND, name)
            raise UnsupportedArgument(name=name, value=value, engine_kind=CPP_KIND, remedy=remedy)
    sampling = submit.sampling
    tensors: dict[str, Any] = {
        "input_ids": submit.input_ids,
        "input_lengths": len(submit.input_ids),
        "request_output_len": submit.max_tokens,
        "pad_id": submit.pad_id,
        "streaming": True,
        "exclude_input_in_output": True,
        **{
            name: getattr(sampling, field)
            for field, name in _SAMPLING_TENSORS.items()
            if getattr(sampling, field) != getattr(_DEFAULTS, field)
        },
    }
    if submit.caller_id:
        tensors["id"] = submit.caller_id
    if submit.min_tokens:
        tensors["min_length"] = submit.min_tokens
    if submit.end_id is not None:
        tensors["end_id"] = submit.end_id
    if submit.guide is not None:
        name, type_ = "guided_decoding_guide_type", submit.guide.type
        if type_ not in GUIDE_TYPES:
            raise UnsupportedArgument(name=name, value=type_, engine_kind=CPP_KIND, remedy=NO_CHAT_FORM)
        tensors[name] = type_
        if submit.guide.text:
            tensors["guided_decoding_guide"] = submit.guide.text
    if sampling.logit_bias:
        tensors["logit_bias_ids"] = list(sampling.logit_bias)
        tensors["logit_bias_values"] = list(sampling.logit_bias.values())
    if submit.wants_log_probs:
        tensors["return_log_probs"] = True
    if submit.num_top_log_probs:
        tensors["num_top_log_probs"] = submit.num_top_log_probs
    return tensors


class TensorEvent(msgspec.Struct):
    """Output tensors by the slot's names; one of a single element is a number. Other keys are Triton's."""

    output_ids: TokenId | list[TokenId] | None = None
    finish_reason: Literal["end", "stop", "length", "cancelled"] | None = None
    output_log_probs: float | list[float] | None = None
    top_log_prob_ids: int | list[int] | None = None
    top_log_probs: float | list[float] | None = None
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        return [self.output_ids] if isinstance(self.output_ids, int) else self.output_ids or []

    def log_probs(self, num_top: int) -> list[TokenLogProb]:
        """One for each of ``tokens``, with at most ``num_top`` of the most likely tokens. Raises E2104."""
        values = _as_list(self.output_log_probs)
        top_ids, top_values = _as_list(self.top_log_prob_ids), _as_list(self.top_log_probs)
        if len(top_ids) != len(top_values) or len(values) != len(self.tokens):
            lengths = f"{len(self.tokens)} output_ids, {len(values)} output_log_probs"
            raise TritonMalformedEvent(
                event=f"{lengths}, {len(top_ids)} top_log_prob_ids, {len(top_values)} top_log_probs"
            )
        top = list(zip(top_ids, top_values, strict=True))
        return [
            TokenLogProb(value, [each for each in top[at * num_top : (at + 1) * num_top] if each[0] >= 0])
            for at, value in enumerate(values)
        ]


def _as_list(value: N | list[N] | None) -> list[N]:
    return value if isinstance(value, list) else [] if value is None else [value]
