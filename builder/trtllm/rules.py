"""Checks of a config before any weights are downloaded.

``check`` needs the config alone and ``check_gpu`` the GPU's architecture. The checks that need
the model's config.json are in ``sizing``.
"""

from collections.abc import Iterator

from builder.config.config import BuildConfig, Target
from builder.trtllm.flags import CONVERT, QUANTIZE, VERSION
from builder.trtllm.summary import ProgramCall, TrtllmBuild, summarize
from errors.build_config import (
    ConflictingBuildKeys,
    InvalidBuildValue,
    QuantizationUnsupported,
    WorldSizeMismatch,
)

AWQ_CALIB_SIZE = 32
"""Maximum number of samples that quantize.py uses for AWQ."""
SMS = {80: "Ampere", 86: "Ampere", 89: "Ada", 90: "Hopper"}
"""Architectures that TensorRT-LLM 0.16.0 compiles for; Volta and Blackwell are not among them."""
_FP8_SM, _FP8_GEMM_SM = 89, 90
_FP8_WEIGHTS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A8_AWQ")
_QUANTIZATION_FLAGS = ("use_weight_only", "smoothquant", "use_fp8", "use_fp8_rowwise", "use_qserve")
_NEEDS = (
    ("use_paged_context_fmha", "enable", "kv_cache_type", "paged"),
    ("use_paged_context_fmha", "enable", "context_fmha", "enable"),
    ("use_paged_context_fmha", "enable", "remove_input_padding", "enable"),
    ("use_paged_context_fmha", "enable", "streamingllm", "disable"),
    ("use_fp8_context_fmha", "enable", "context_fmha", "enable"),
    ("user_buffer", "enable", "reduce_fusion", "enable"),
)
"""Flag and value of trtllm-build that require another flag and value."""


def is_unversioned(config: BuildConfig) -> bool:
    """Return True for a TensorRT-LLM config that names no version, as those of cog-trt-llm."""
    return config.engine_kind == "tensorrt_llm" and config.version is None


def check(config: BuildConfig) -> tuple[TrtllmBuild, list[str]]:
    """Check ``config``; return the build that it describes, and notes. Raises E1203, E1204, E1220-E1222."""
    _check_nvfp4(config)
    build = summarize(config)
    if config.target is not None:
        _check_world_size(build, config.target)
        if config.target.sm is not None:
            check_gpu(build, config.target.sm)
    for call in build.calls:
        if call.program in (CONVERT, QUANTIZE):
            _check_calibration(call)
    _check_checkpoint(build)
    for problem, remedy in _feature_conflicts(build):
        raise ConflictingBuildKeys(problem=problem, remedy=remedy)
    return build, list(_notes(build))


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


def _check_nvfp4(config: BuildConfig) -> None:
    """Raise E1222 for NVFP4, which this quantize.py does not support."""
    for key, step in config.program_steps.items():
        for name, value in (step.args or {}).items():
            if "nvfp4" in str(value).lower().split(","):
                raise QuantizationUnsupported(
                    key=f"{key}.args.{name}",
                    value=value,
                    needed="a Blackwell GPU (SM 100 or newer) and a later TensorRT-LLM",
                    found=f"this one is {VERSION}",
                    remedy="choose fp8 on Ada or Hopper, int4_awq elsewhere",
                )


def _fp8_uses(build: TrtllmBuild) -> Iterator[tuple[str, object, int]]:
    """Yield key, value and minimum SM of everything in ``build`` that computes or stores FP8."""
    key = build.checkpoint.key if build.checkpoint else "build"
    if build.quantization in _FP8_WEIGHTS:
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


def _check_world_size(build: TrtllmBuild, target: Target) -> None:
    if target.gpus is None or build.checkpoint is None or target.gpus == build.world_size:
        return
    sizes = {"tp_size": build.tp_size, "pp_size": build.pp_size, "cp_size": build.cp_size}
    product = " x ".join(f"{name} {size}" for name, size in sizes.items())
    raise WorldSizeMismatch(
        asked=f"target.gpus is {target.gpus}",
        found=f"{build.checkpoint.key} makes a checkpoint for {build.world_size} ({product})",
        remedy="make the product of these sizes the number of GPUs",
    )


def _check_calibration(call: ProgramCall) -> None:
    where = f"{call.key}.args"
    calib_size = call.value("calib_size")
    if call.program == CONVERT:
        if calib_size == 0:
            raise InvalidBuildValue(key=f"{where}.calib_size", expected="at least 1, or -1 for all", value=0)
        return
    batch_size = call.value("batch_size")
    samples = min(calib_size, AWQ_CALIB_SIZE) if "awq" in call.value("qformat") else calib_size
    if _calibrates(call) and batch_size > samples:
        raise ConflictingBuildKeys(
            problem=f"calibrates in batches of {batch_size} ({where}.batch_size), but with {samples} samples",
            remedy=f"give a batch_size of at most {samples}"
            + (" (AWQ never takes more)" if samples < calib_size else " or a larger calib_size"),
        )
    if call.value("autoq_format") and not call.value("auto_quantize_bits"):
        raise ConflictingBuildKeys(
            problem=f"gives {where}.autoq_format without auto_quantize_bits",
            remedy="give the number of bits to reach, or qformat alone",
        )


def _calibrates(call: ProgramCall) -> bool:
    plain = call.value("qformat") in ("full_prec", "int8_wo", "int4_wo")
    return not plain or bool(call.value("kv_cache_dtype") or call.value("auto_quantize_bits"))


def _check_checkpoint(build: TrtllmBuild) -> None:
    call, auto_parallel = build.checkpoint, build.build.value("auto_parallel")
    if auto_parallel > 1 and build.world_size != auto_parallel:
        raise WorldSizeMismatch(
            asked=f"build.args.auto_parallel is {auto_parallel}",
            found=f"the checkpoint is for {build.world_size // auto_parallel} GPUs",
            remedy="convert with tp_size, pp_size and cp_size 1, or leave out auto_parallel",
        )
    if call is None or call.program != CONVERT:
        return
    experts = (call.value("moe_tp_size"), call.value("moe_ep_size"))
    if min(experts) > 0 and experts[0] * experts[1] != build.tp_size:
        raise WorldSizeMismatch(
            asked=f"moe_tp_size {experts[0]} x moe_ep_size {experts[1]} is {experts[0] * experts[1]}",
            found=f"{call.key}.args.tp_size is {build.tp_size}",
            remedy="make the product of the first two tp_size",
        )
    kinds = [name for name in _QUANTIZATION_FLAGS if call.value(name) not in (None, False)]
    if len(kinds) > 1:
        problem = f"quantizes twice ({' and '.join(f'{call.key}.args.{each}' for each in kinds)})"
        raise ConflictingBuildKeys(problem=problem, remedy="choose one")
    if call.value("int8_kv_cache") and call.value("fp8_kv_cache"):
        raise ConflictingBuildKeys(problem="asks for an int8 and an fp8 KV cache", remedy="choose one")


def _feature_conflicts(build: TrtllmBuild) -> Iterator[tuple[str, str]]:
    value = build.build.value
    for name, at, needed, needed_at in _NEEDS:
        if value(name) == at and value(needed) != needed_at:
            yield (
                f"has build.args.{name} {at}, which needs {needed} {needed_at}, not {value(needed)}",
                f"set {needed} to {needed_at} or leave out {name}",
            )
    needs_fp8 = value("use_fp8_context_fmha") == "enable" and build.checkpoint is not None
    if needs_fp8 and build.quantization not in (*_FP8_WEIGHTS, "MIXED_PRECISION"):
        weights = build.quantization or build.dtype
        yield (
            f"has build.args.use_fp8_context_fmha for {weights} weights",
            "quantize to fp8 or w4a8_awq, or leave it out",
        )
    if value("gpt_attention_plugin") == "disable" and value("kv_cache_type") == "paged":
        yield (
            "has build.args.gpt_attention_plugin disable, but a paged KV cache is that plugin's",
            "leave out gpt_attention_plugin, or set kv_cache_type to continuous",
        )
    if value("lora_dir") and value("lora_plugin") == "disable":
        yield "gives build.args.lora_dir, but lora_plugin is disable", "set lora_plugin to auto"
    has_lengths = build.max_seq_len is not None and "max_input_len" in build.build.args
    if has_lengths and value("max_input_len") > (build.max_seq_len or 0):
        yield (
            f"has max_input_len {value('max_input_len')} above max_seq_len {build.max_seq_len}",
            "max_seq_len counts prompt and output: make it the larger one",
        )


def _notes(build: TrtllmBuild) -> Iterator[str]:
    value = build.build.value
    chunks = value("use_paged_context_fmha") == "enable"
    prompt, step, cache = value("max_input_len"), value("max_num_tokens"), value("kv_cache_type")
    if "max_input_len" in build.build.args and prompt > step and not chunks:
        yield (
            f"max_num_tokens {step} is less than max_input_len {prompt}: "
            "longer prompts are refused unless use_paged_context_fmha is enabled (chunked context)"
        )
    if cache != "paged":
        yield f"kv_cache_type {cache}: such an engine can't be batched in flight"
