"""What NVIDIA's backend takes and engines here don't, by engine kind: asked for, it is E1104."""

from __future__ import annotations

from errors.requests import UnsupportedArgument
from runner.slot.tensors import Row, Tensors

_UNSUPPORTED_SCALARS = (
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
ENGINE_TENSORS = (
    "draft_input_ids",
    "draft_logits",
    "draft_acceptance_threshold",
    "embedding_bias",
    "prompt_embedding_table",
    "prompt_table_extra_ids",
    "lora_weights",
    "lora_config",
)
"""Handed to the engine as they are."""
_UNSUPPORTED_TENSORS = (
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
_HONOURED: dict[str, frozenset[str]] = {
    "tensorrt_llm": frozenset(
        {
            *ENGINE_TENSORS,
            "lora_task_id",
            "early_stopping",
            "runtime_top_p_min",
            "runtime_top_p_decay",
            "runtime_top_p_reset_ids",
            "beam_search_diversity_rate",
            "beam_width",
            "num_return_sequences",
        }
    )
}
"""By engine kind: what it takes of that which others don't."""
NO_ENGINE_REMEDY = "leave it out"


def refuse_unsupported(tensors: Tensors, row: Row, engine_kind: str) -> None:
    honoured = _HONOURED.get(engine_kind, frozenset())
    for name in _UNSUPPORTED_TENSORS:
        if name in tensors and name not in honoured:
            shape = "x".join(map(str, tensors[name].shape))
            raise unsupported(name, f"<{shape} tensor>", engine_kind)
    for name in _UNSUPPORTED_SCALARS:
        if name not in honoured and (flag := row.scalar(name)):
            raise unsupported(name, flag, engine_kind)
    for name in ("beam_width", "num_return_sequences"):
        if name not in honoured and (count := row.scalar(name)) not in (None, 0, 1):
            raise unsupported(name, count, engine_kind)


def unsupported(name: str, value: object, engine_kind: str) -> UnsupportedArgument:
    return UnsupportedArgument(name=name, value=value, engine_kind=engine_kind, remedy=NO_ENGINE_REMEDY)
