"""llama.cpp's C API, which the wheel of ``xllamacpp`` exports, by ctypes.

The structures are those of ``llama.h`` of build b11549. ``check_layout`` refuses a library whose defaults
show another layout. xllamacpp itself is not imported: it has no interface to sequences and scores.
"""

import ctypes
import importlib.util
import math
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

from errors.engines import EngineStartFailed

ENGINE_KIND = "llama_cpp"
PACKAGE = "xllamacpp"
MOST_SEQUENCES = 256
"""LLAMA_MAX_SEQ: number of sequences that a context can hold."""
FLOAT16_BYTES = 2
"""Size of a number in the KV cache."""

LOG_ERROR, LOG_CONTINUED = 4, 5
LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class ModelParams(Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class ContextParams(Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


_DEFAULTS: dict[str, dict[str, float | None]] = {
    "llama_model_default_params": {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "main_gpu": 0,
        "tensor_split": None,
        "progress_callback": None,
        "kv_overrides": None,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
        "load_mtp": False,
    },
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_outputs_max": 0,
        "n_outputs_max_per_seq": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "ctx_type": 0,
        "rope_scaling_type": -1,
        "flash_attn_type": -1,
        "rope_freq_scale": 0.0,
        "yarn_ext_factor": -1.0,
        "yarn_beta_slow": -1.0,
        "yarn_orig_ctx": 0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "moe_cache_size": 0,
        "abort_callback": None,
        "embeddings": False,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
        "samplers": None,
        "n_samplers": 0,
        "ctx_other": None,
    },
}
"""Values that the library gives its parameters, by which ``check_layout`` knows where they lie."""

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_version": (c_char_p, []),
    "llama_log_set": (None, [LogCallback, c_void_p]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_has_encoder": (c_bool, [c_void_p]),
    "llama_model_has_decoder": (c_bool, [c_void_p]),
    "llama_model_is_recurrent": (c_bool, [c_void_p]),
    "llama_model_is_hybrid": (c_bool, [c_void_p]),
    "llama_model_is_diffusion": (c_bool, [c_void_p]),
    "llama_model_meta_val_str": (c_int32, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "llama_model_n_ctx_train": (c_int32, [c_void_p]),
    "llama_model_n_embd": (c_int32, [c_void_p]),
    "llama_model_n_head": (c_int32, [c_void_p]),
    "llama_model_n_head_kv": (c_int32, [c_void_p]),
    "llama_model_n_layer": (c_int32, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_n_ctx": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (POINTER(c_float), [c_void_p]),
}


def open_library() -> ctypes.CDLL:
    """Load the library. Raises ModuleNotFoundError without the package, and EngineStartFailed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    path = Path(spec.origin).with_name(f"{PACKAGE}.abi3.so")
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as exc:
        raise start_failed(f"{path.name} of {PACKAGE} can't be used: {exc}") from exc
    check_layout(library)
    return library


def check_layout(library: Any) -> None:
    """Raise EngineStartFailed if the library's default parameters are not where this module expects them."""
    for name, expected in _DEFAULTS.items():
        params = getattr(library, name)()
        for field, value in expected.items():
            found = getattr(params, field)
            if found != value or (isinstance(found, float) and math.isnan(found)):
                version = library.llama_version().decode(errors="replace")
                raise start_failed(
                    f"{name} of llama.cpp {version} has {field} = {found} in place of {value}; install the "
                    f"version of {PACKAGE} that requirements/engine.txt pins"
                )


def start_failed(reason: str) -> EngineStartFailed:
    return EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason)
