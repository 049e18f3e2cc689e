"""The precision in which a model's weights are stored, and in which an engine holds them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from builder.sizes.memory import DTYPE_BYTES, Precision, weight_bytes
from builder.sizes.model_shape import ModelShape
from builder.weights.checkpoint import MOST, ModelConfig

_BITS_IN_NAME = re.compile(r"(?:fp|int|w)([2-8])(?![0-9])")
_KEY_AND_VALUE_BITS = re.compile(r"k([2-8])v([2-8])")
_CACHE_BITS = re.compile(r"([2-8])bit")
_SCALE_BITS = 0.5
"""Scales of a number of less than 8 bits in a KV cache, at most."""
WHOLE = 0.95
"""Files that are smaller, compared with what config.json tells, have fewer bits than it states."""
_FINE_GROUP = 32
"""Number of weights that share a scale in methods that do not state it, as MXFP4."""


def stored_precision(values: Mapping[str, Any]) -> Precision:
    """Return the precision of the model's files; quantized weights' by their bits or their method."""
    config = ModelConfig(values)
    dtype = config.dtype if config.dtype in DTYPE_BYTES else "float16"
    described = values.get("quantization_config")
    if not isinstance(described, dict):
        return Precision(dtype=str(dtype))
    if config.quantization == "gguf" and {"type", "total_bytes"} <= described.keys():
        return Precision(gguf_type=described["type"], gguf_bytes=described["total_bytes"])
    bits, group_size = _weight_bits(described)
    if bits is not None and dtype == "float32":
        dtype = "float16"  # What is not quantized has 16 bits in practice.
    return Precision(dtype=str(dtype), weight_bits=bits, group_size=group_size)


def named_bits(name: object) -> int | None:
    """Return the bits of a weight that the name of a quantization tells, as in ``mxfp4`` or ``W4A16_AWQ``."""
    found = _BITS_IN_NAME.search(str(name).lower())
    return int(found[1]) if found else None


def cache_bits(name: object) -> float | None:
    """Return the bits of a number in a KV cache, with its share of scales; None for the model's data type."""
    bits: float | None
    if (pair := _KEY_AND_VALUE_BITS.search(str(name))) is not None:
        bits = (int(pair[1]) + int(pair[2])) / 2
    elif (found := _CACHE_BITS.search(str(name))) is not None:
        bits = int(found[1])
    else:
        bits = named_bits(name)
    return bits + _SCALE_BITS if bits is not None and bits < 8 else bits


def _weight_bits(described: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the bits of a quantized weight, and how many weights share a scale; None: not stated."""
    groups = described.get("config_groups")
    within = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in within if isinstance(group, dict)]
    places = [described, *(each for each in weights if isinstance(each, dict))]
    stated = [place[key] for place in places for key in ("bits", "num_bits") if _is_size(place.get(key))]
    by_flag = {"load_in_4bit": 4, "load_in_8bit": 8}
    stated = stated or [bits for flag, bits in by_flag.items() if described.get(flag) is True]
    names = map(named_bits, (described.get("quant_algo"), described.get("quant_method")))
    bits = max(stated, default=None) or next(filter(None, names), None)
    sizes = [place["group_size"] for place in places if _is_size(place.get("group_size"))]
    unstated = (
        _FINE_GROUP if bits in (2, 3, 4) and not any("group_size" in place for place in places) else None
    )
    return bits, min(sizes, default=unstated)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= MOST


def measured(
    shape: ModelShape, precision: Precision, file_bytes: int | None, file_dtype: str | None = None
) -> Precision:
    """Correct ``precision``, in which a model is stored, by the size of its files of weights, if known.

    Few config.json tell all that a model has: towers for images, layers without experts, what is not
    quantized. Their size is no sign of that if config.json states 32 bits and they have 16, or the reverse:
    ``file_dtype`` is what they have. If it is not known, it is guessed by their size.
    """
    if file_bytes is None or precision.gguf_type is not None:
        return precision
    is_whole = precision.weight_bits is None
    if is_whole and file_dtype is not None and file_dtype in DTYPE_BYTES:
        scale = file_bytes / weight_bytes(shape, replace(precision, dtype=file_dtype))
        return replace(precision, scale=scale)
    scale = file_bytes / weight_bytes(shape, precision)
    if is_whole and precision.dtype == "float32" and scale < WHOLE:
        scale *= 2
    elif is_whole and precision.dtype != "float32" and 1.9 < scale < 2.1:
        scale /= 2
    return replace(precision, scale=scale)


def num_parameters(shape: ModelShape, stored: Precision) -> int:
    """Return the number of parameters: by the size of the files if it is known, else by the shape."""
    if stored.weight_bits is not None or stored.gguf_type is not None:
        return shape.num_parameters
    return weight_bytes(shape, stored) // stored.dtype_bytes


def running_precision(stored: Precision, dtype: str | None, *, on_cpu: bool, half: bool) -> Precision:
    """Return how the engine holds the numbers that the model's files have as ``stored``.

    ``on_cpu``: weights are held as float32. ``half``: float32 weights are held in 16 bits, as vLLM does.
    """
    if stored.gguf_type is not None:
        return stored
    if on_cpu:
        return Precision(dtype=dtype or "float32", scale=1.0 if stored.weight_bits else stored.scale)
    if dtype is not None:
        return replace(stored, dtype=dtype)
    return replace(stored, dtype="float16") if half and stored.dtype == "float32" else stored
