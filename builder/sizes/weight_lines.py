"""Sizes of a model that is not compiled: its weights and the KV cache of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.sizes.memory import (
    DTYPE_BYTES,
    Precision,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    weight_bytes,
)
from builder.sizes.model_shape import ModelShape
from builder.sizes.words import count_in_words, in_words
from builder.weights.checkpoint import ModelConfig


def stored_precision(values: Mapping[str, Any]) -> Precision:
    """The precision of the model's files; of quantized weights by their bits or their method."""
    config = ModelConfig(values)
    dtype = config.dtype if config.dtype in DTYPE_BYTES else "float16"
    described = values.get("quantization_config")
    if not isinstance(described, dict):
        return Precision(dtype=str(dtype))
    bits, group_size = described.get("bits"), described.get("group_size")
    by_method = 8 if "fp8" in str(config.quantization) else None
    return Precision(
        dtype=str(dtype),
        weight_bits=bits if isinstance(bits, int) and bits in (2, 3, 4, 8) else by_method,
        group_size=group_size if isinstance(group_size, int) and group_size > 0 else None,
    )


def weight_lines(
    shape: ModelShape, stored: Precision, running: Precision, max_seq_len: int | None
) -> list[str]:
    """Lines about the ``stored`` weights and the KV cache of the ``running`` engine."""
    of_token = kv_bytes_per_token(shape, running)
    lines = [
        f"model         {count_in_words(shape.num_parameters)} parameters, {shape.num_layers} layers",
        f"weights       {in_words(weight_bytes(shape, stored))} ({stored.dtype})",
    ]
    if max_seq_len is not None:
        of_sequence = in_words(kv_bytes_per_sequence(of_token, max_seq_len))
        per_sequence = f"{of_sequence} per sequence of {max_seq_len} tokens"
        lines.append(f"KV cache      {in_words(of_token)} per token, {per_sequence}")
    return lines
