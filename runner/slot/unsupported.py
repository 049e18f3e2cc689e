"""Arguments of NVIDIA's backend that an engine kind does not support, as far as tensors show them: E1104."""

from engine.kinds import ENGINE_TENSORS, argument_remedy, find_kind, supports
from errors.requests import UnsupportedArgument
from runner.slot.rows import Row, Tensors

_FLAGS = (
    *("return_context_logits", "return_generation_logits", "return_kv_cache_reuse_stats"),
    *("early_stopping", "runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids"),
    *("beam_search_diversity_rate", "draft_acceptance_threshold"),
)
"""Rejected if not 0 or false."""
_COUNTS = ("beam_width", "decoder_input_lengths")
"""Rejected if above 1."""
_TENSORS = (
    *ENGINE_TENSORS,
    *("lora_task_id", "context_phase_params", "encoder_input_features", "encoder_output_lengths"),
    *("cross_attention_mask", "skip_cross_attn_blocks"),
)
"""Rejected if present and not empty."""


def check_tensors(tensors: Tensors, row: Row, engine_kind: str) -> None:
    """Raise E1104 for tensors that engines of this kind do not take."""
    supported = find_kind(engine_kind).tensors
    for name in _TENSORS:
        if name in tensors and tensors[name].size and name not in supported:
            if name == "embedding_bias" and supports(engine_kind, "logit_bias"):
                continue  # Passed on as such.
            shape = "x".join(map(str, tensors[name].shape))
            raise _unsupported(name, f"<{shape} tensor>", engine_kind)
    # NVIDIA's preprocessing gives one token of padding, which clients send on to any model.
    ids = row.array("decoder_input_ids")
    if ids.size > 1 or (ids.size and ids[0] != row.scalar("pad_id")):
        raise _unsupported("decoder_input_ids", f"<{ids.size} tokens>", engine_kind)
    for name in _FLAGS:
        if name not in supported and (flag := row.scalar(name)):
            raise _unsupported(name, flag, engine_kind)
    for name in _COUNTS:
        if name not in supported and (count := row.scalar(name)) not in (None, 0, 1):
            raise _unsupported(name, count, engine_kind)


def _unsupported(name: str, value: object, engine_kind: str) -> UnsupportedArgument:
    remedy = argument_remedy(engine_kind, name)
    return UnsupportedArgument(name=name, value=value, engine_kind=engine_kind, remedy=remedy)
