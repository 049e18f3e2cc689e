"""Turn a config for a compiled engine into one for TensorRT-LLM's PyTorch backend, with notes of losses."""

from collections.abc import Iterator
from typing import Any

from builder.config.config import BuildConfig
from builder.config.file import checked_config
from builder.trtllm.summary import TrtllmBuild

_KEPT = ("model_id", "revision", "model_path", "model_tar_url", "weight_format", "trust_remote_code")
_KV_DTYPES = {"FP8": "fp8"}
_TAKEN = {
    *("tp_size", "pp_size", "cp_size", "world-size", "dtype", "max_batch_size", "max_seq_len"),
    "max_num_tokens",
    *("kv_cache_dtype", "fp8_kv_cache", "int8_kv_cache", "model_dir", "output_dir", "checkpoint_dir"),
}
"""Flags that ``_llm_args`` or a note of its own stands for, and folders."""
_INSTEAD = {
    "lora_dir": "name the adapters under lora",
    "speculative_decoding_mode": "give llm_args.speculative_config",
    "max_beam_width": "beam searches are not served",
    "max_input_len": "max_seq_len limits prompt and output together",
}


def pytorch_config(config: BuildConfig, build: TrtllmBuild) -> tuple[BuildConfig, list[str]]:
    """Return the config for the PyTorch backend, and notes. ``build``: what ``config`` describes."""
    keys: dict[str, Any] = {"version": 1, "engine": "tensorrt_llm", "backend": "pytorch"}
    given = config.model_dump(exclude_unset=True, exclude_none=True)
    keys |= {name: given[name] for name in _KEPT if name in given}
    if build.dtype != "auto":
        keys["dtype"] = build.dtype
    for name in ("max_seq_len", "max_batch_size"):
        if (value := build.build.args.get(name)) is not None:
            keys[name] = int(value)
    if arguments := _llm_args(build):
        keys["llm_args"] = arguments
    return checked_config(keys), list(_notes(config, build))


def _llm_args(build: TrtllmBuild) -> dict[str, Any]:
    sizes = {"tensor": build.tp_size, "pipeline": build.pp_size, "context": build.cp_size}
    arguments: dict[str, Any] = {f"{name}_parallel_size": size for name, size in sizes.items() if size > 1}
    if (most := build.build.args.get("max_num_tokens")) is not None:
        arguments["max_num_tokens"] = int(most)
    if build.kv_cache_quantization in _KV_DTYPES:
        arguments["kv_cache_config"] = {"dtype": _KV_DTYPES[build.kv_cache_quantization]}
    return arguments


def _notes(config: BuildConfig, build: TrtllmBuild) -> Iterator[str]:
    yield "backend: TensorRT-LLM 1.x runs the model's weights by PyTorch; nothing is compiled"
    if build.quantization is not None:
        yield f"{build.quantization}: dropped (name a model that is quantized already, by NVIDIA's ModelOpt)"
    if build.kv_cache_quantization not in (None, *_KV_DTYPES):
        yield f"a KV cache in {build.kv_cache_quantization}: dropped (it may be fp8 or nvfp4)"
    for call in build.calls:
        names = [name for name in (config.program_steps[call.key].args or {}) if name not in _TAKEN]
        for name in [name for name in names if name in _INSTEAD]:
            yield f"{call.key}.args.{name}: dropped ({_INSTEAD[name]})"
        if others := [name for name in names if name not in _INSTEAD]:
            yield f"{call.key}.args: dropped {', '.join(others)}"
    if config.target is not None:
        yield "target: dropped (the engine runs on any GPU that the library supports)"
    if build.fit_lengths and build.max_seq_len is not None:
        yield "max_seq_len: lower it if a build says that the model has fewer positions"
