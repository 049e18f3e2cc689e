"""Which GPU architecture an engine needs, by what is quantized and computed how."""

from __future__ import annotations

from collections.abc import Iterator

from builder.config.config import BuildConfig
from builder.trtllm.flags import QUANTIZE, VERSION
from builder.trtllm.summary import TrtllmBuild
from errors.build_config import QuantizationUnsupported

SMS = {80: "Ampere", 86: "Ampere", 89: "Ada", 90: "Hopper"}
"""The architectures that TensorRT-LLM 0.16.0 compiles for; Volta and Blackwell are not among them."""

_FP8_SM, _FP8_GEMM_SM = 89, 90
FP8_WEIGHTS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A8_AWQ")


def check_gpu(build: TrtllmBuild, sm: int) -> None:
    """Raise E1222 if a GPU of architecture ``sm`` can't do what ``build`` asks for."""
    if sm not in SMS:
        raise QuantizationUnsupported(
            key="target.sm",
            value=sm,
            needed="a later TensorRT-LLM" if sm > max(SMS) else "an earlier TensorRT-LLM",
            found=f"{VERSION} compiles for SM {', '.join(map(str, SMS))}",
            remedy="choose one of these",
        )
    for key, value, needed_sm in _fp8_uses(build):
        if sm < needed_sm:
            architecture = "Hopper (SM 90)" if needed_sm == _FP8_GEMM_SM else "Ada or Hopper (SM 89 or newer)"
            raise QuantizationUnsupported(
                key=key,
                value=value,
                needed=f"an {architecture} GPU" if needed_sm == _FP8_SM else f"a {architecture} GPU",
                found=f"the engine is for SM {sm}",
                remedy="quantize to int8 or int4 instead, or build for a newer GPU",
            )


def check_nvfp4(config: BuildConfig) -> None:
    """Raise E1222 for NVFP4: it is no choice of this quantize.py, and why is worth telling."""
    for key, step in config.program_steps.items():
        for name, value in (step.args or {}).items():
            formats = str(value).lower().split(",")
            if "nvfp4" in formats:
                raise QuantizationUnsupported(
                    key=f"{key}.args.{name}",
                    value=value,
                    needed="a Blackwell GPU (SM 100 or newer) and a later TensorRT-LLM",
                    found=f"this one is {VERSION}",
                    remedy="choose fp8 on Ada or Hopper, int4_awq elsewhere",
                )


def _fp8_uses(build: TrtllmBuild) -> Iterator[tuple[str, object, int]]:
    """Key, value and least SM of everything in ``build`` that computes or stores FP8."""
    key = build.checkpoint.key if build.checkpoint else "build"
    if build.quantization in FP8_WEIGHTS:
        yield f"{key} (quantization)", build.quantization, _FP8_SM
    if build.checkpoint is not None and build.checkpoint.program == QUANTIZE:
        formats = str(build.checkpoint.value("autoq_format") or "")
        if "fp8" in formats or "w4a8" in formats:
            yield f"{key}.args.autoq_format", formats, _FP8_SM
    if build.kv_cache_quantization == "FP8":
        yield f"{key} (KV cache)", "FP8", _FP8_SM
    for name in ("gemm_plugin", "fp8_rowwise_gemm_plugin", "use_fp8_context_fmha"):
        if build.build.value(name) in ("fp8", "enable") or (
            name == "fp8_rowwise_gemm_plugin" and build.build.value(name) != "disable"
        ):
            yield f"build.args.{name}", build.build.value(name), _FP8_SM
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"):
        if build.build.value(name) == "fp8":
            yield f"build.args.{name}", "fp8", _FP8_GEMM_SM
