"""The QuantAlgo that a converter's flags ask for. Used by the plan and in the engine environment."""

from collections.abc import Callable
from typing import Any

_WEIGHT_ONLY = {
    "int8": "W8A16",
    "int4": "W4A16",
    "int8_gptq": "W8A16_GPTQ",
    "int4_gptq": "W4A16_GPTQ",
    "int4_awq": "W4A16_AWQ",
    "w8a8": "W8A8_SQ_PER_CHANNEL",
    "w4a8_awq": "W4A8_AWQ",
}


def quant_algo(value: Callable[[str], Any]) -> str | None:
    """Return the QuantAlgo. ``value`` returns a flag's value; the order of checks is TensorRT-LLM's."""
    if value("use-weight-only-with-precision"):
        return _WEIGHT_ONLY[value("use-weight-only-with-precision")]
    if value("use_weight_only"):
        return _WEIGHT_ONLY[value("weight_only_precision")]
    if value("use_fp8") or value("enable_fp8"):
        return "FP8"
    if value("smoothquant") is not None or value("use_smooth_quant_plugin") is not None:
        weights = "PER_CHANNEL" if value("per_channel") else "PER_TENSOR"
        activations = "_PER_TOKEN" if value("per_token") else ""
        plain = "_PER_TENSOR" if weights == "PER_CHANNEL" and not activations else activations
        return f"W8A8_SQ_{weights}{plain}_PLUGIN"
    if value("use_fp8_rowwise"):
        return "FP8_PER_CHANNEL_PER_TOKEN"
    if value("use_qserve"):
        return f"W4A8_QSERVE_{'PER_GROUP' if value('per_group') else 'PER_CHANNEL'}"
    return None
