"""What NVIDIA's backend supports and an engine kind here does not: E1104."""

from __future__ import annotations

from engine.kinds import ENGINE_TENSORS, Capability, argument_remedy, find_kind, supports
from errors.requests import UnsupportedArgument
from runner.engines.protocol.messages import Ready, Submit
from runner.slot.tensors import Row, Tensors

_FLAGS = (
    "return_context_logits",
    "return_generation_logits",
    "return_kv_cache_reuse_stats",
    "early_stopping",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "runtime_top_p_reset_ids",
    "beam_search_diversity_rate",
    "draft_acceptance_threshold",
)
"""Refused if not 0 or false."""
_COUNTS = ("beam_width", "num_return_sequences")
"""Refused if above 1."""
_TENSORS = (
    *ENGINE_TENSORS,
    "lora_task_id",
    "decoder_input_ids",
    "decoder_input_lengths",
    "context_phase_params",
    "encoder_input_features",
    "encoder_output_lengths",
    "cross_attention_mask",
    "skip_cross_attn_blocks",
)
"""Refused if given."""


def refuse_unsupported_tensors(tensors: Tensors, row: Row, engine_kind: str) -> None:
    supported = find_kind(engine_kind).tensors
    for name in _TENSORS:
        if name in tensors and name not in supported:
            shape = "x".join(map(str, tensors[name].shape))
            raise _unsupported(name, f"<{shape} tensor>", engine_kind)
    for name in _FLAGS:
        if name not in supported and (flag := row.scalar(name)):
            raise _unsupported(name, flag, engine_kind)
    for name in _COUNTS:
        if name not in supported and (count := row.scalar(name)) not in (None, 0, 1):
            raise _unsupported(name, count, engine_kind)


def refuse_guide_type(name: str, ready: Ready) -> None:
    if name not in ready.guide_types:
        raise _unsupported("guided_decoding_guide_type", name, ready.engine_kind)


def refuse_unsupported(submit: Submit, engine_kind: str, *, is_streaming: bool) -> None:
    """Raise E1104 for values that the engine kind does not support, alone or together."""
    sampling = submit.sampling
    needed: tuple[tuple[Capability, str, object], ...] = (
        ("log_probs", "return_log_probs", submit.wants_log_probs),
        ("min_p", "min_p", sampling.min_p),
        ("logit_bias", "logit_bias_ids", list(sampling.logit_bias)),
    )
    for capability, name, value in needed:
        if value and not supports(engine_kind, capability):
            raise _unsupported(name, value, engine_kind)
    beam_width = sampling.beam_width
    if submit.guide is not None and beam_width > 1:
        remedy = "a beam search can't follow a guide: leave one of the two out"
        raise _unsupported("beam_width", beam_width, engine_kind, remedy)
    if submit.guide is not None and submit.min_tokens and not supports(engine_kind, "guided_min_length"):
        remedy = "leave it out with a guide, which determines where the output may end"
        raise _unsupported("min_length", submit.min_tokens, engine_kind, remedy)
    if is_streaming and beam_width > 1:
        remedy = "a beam search has no output before its end: send streaming=false"
        raise _unsupported("streaming", True, engine_kind, remedy)


def _unsupported(
    name: str, value: object, engine_kind: str, remedy: str | None = None
) -> UnsupportedArgument:
    return UnsupportedArgument(
        name=name, value=value, engine_kind=engine_kind, remedy=remedy or argument_remedy(engine_kind, name)
    )
