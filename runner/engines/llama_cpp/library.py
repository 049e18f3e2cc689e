"""llama.cpp's C API, which the wheel of ``xllamacpp`` exports, by ctypes.

The structures are those of ``llama.h`` of build b11549. A library is refused whose structures are larger, or
whose defaults show another layout. xllamacpp itself is not imported: it has no interface to sequences and
scores.
"""

import ctypes
import importlib.util
import platform
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
FLOAT16_BYTES = 2
"""Size of a number in the KV cache."""

LOG_ERROR, LOG_CONTINUED = 4, 5
LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)


_Field = tuple[str, Any, float | None]
"""Name, type and the value that the library gives it, by which ``check_layout`` knows where it lies."""
_MODEL_PARAMS: tuple[_Field, ...] = (
    ("devices", c_void_p, None),
    ("tensor_buft_overrides", c_void_p, None),
    ("n_gpu_layers", c_int32, -1),
    ("split_mode", c_int, 1),
    ("load_mode", c_int, -1),
    ("lazy_mode", c_int, 1),
    ("main_gpu", c_int32, 0),
    ("tensor_split", c_void_p, None),
    ("progress_callback", c_void_p, None),
    ("progress_callback_user_data", c_void_p, None),
    ("kv_overrides", c_void_p, None),
    ("vocab_only", c_bool, False),
    ("check_tensors", c_bool, False),
    ("use_extra_bufts", c_bool, True),
    ("no_host", c_bool, False),
    ("no_alloc", c_bool, False),
    ("load_mtp", c_bool, False),
)
_CONTEXT_PARAMS: tuple[_Field, ...] = (
    ("n_ctx", c_uint32, 512),
    ("n_batch", c_uint32, 2048),
    ("n_ubatch", c_uint32, 512),
    ("n_seq_max", c_uint32, 1),
    ("n_rs_seq", c_uint32, 0),
    ("n_outputs_max", c_uint32, 0),
    ("n_outputs_max_per_seq", c_uint32, 1),
    ("n_threads", c_int32, 4),
    ("n_threads_batch", c_int32, 4),
    ("ctx_type", c_int, 0),
    ("rope_scaling_type", c_int, -1),
    ("pooling_type", c_int, -1),
    ("attention_type", c_int, -1),
    ("flash_attn_type", c_int, -1),
    ("rope_freq_base", c_float, 0.0),
    ("rope_freq_scale", c_float, 0.0),
    ("yarn_ext_factor", c_float, -1.0),
    ("yarn_attn_factor", c_float, -1.0),
    ("yarn_beta_fast", c_float, -1.0),
    ("yarn_beta_slow", c_float, -1.0),
    ("yarn_orig_ctx", c_uint32, 0),
    ("defrag_thold", c_float, -1.0),
    ("cb_eval", c_void_p, None),
    ("cb_eval_user_data", c_void_p, None),
    ("type_k", c_int, 1),
    ("type_v", c_int, 1),
    ("moe_cache_size", c_size_t, 0),
    ("abort_callback", c_void_p, None),
    ("abort_callback_data", c_void_p, None),
    ("embeddings", c_bool, False),
    ("offload_kqv", c_bool, True),
    ("no_perf", c_bool, True),
    ("op_offload", c_bool, True),
    ("swa_full", c_bool, True),
    ("kv_unified", c_bool, False),
    ("samplers", c_void_p, None),
    ("n_samplers", c_size_t, 0),
    ("ctx_other", c_void_p, None),
)


class ModelParams(Structure):
    _fields_ = [(name, kind) for name, kind, _ in _MODEL_PARAMS]


class ContextParams(Structure):
    _fields_ = [(name, kind) for name, kind, _ in _CONTEXT_PARAMS]


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


_FILL, _TAIL_BYTES = 0xAA, 256
_STRUCTURES: dict[str, type[Structure]] = {
    "llama_model_default_params": ModelParams,
    "llama_context_default_params": ContextParams,
    "llama_batch_get_one": Batch,
}
"""Structures by the function that returns each."""
_DEFAULTS = {
    "llama_model_default_params": _MODEL_PARAMS,
    "llama_context_default_params": _CONTEXT_PARAMS,
}
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
    "llama_n_batch": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_batch_get_one": (Batch, [c_void_p, c_int32]),
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
    check_sizes(library)
    check_layout(library)
    return library


def check_sizes(library: Any) -> None:
    """Raise EngineStartFailed if a structure of the library is larger than this module expects.

    NOTE: on x86-64 the place of a returned structure is passed like a first argument. What a function writes
    there shows its size. Other processors pass it otherwise, so nothing is checked there.
    """
    for name, structure in _STRUCTURES.items() if platform.machine() == "x86_64" else ():
        size_bytes = ctypes.sizeof(structure)
        place = ctypes.create_string_buffer(bytes([_FILL]) * (size_bytes + _TAIL_BYTES))
        write: Any = ctypes.cast(getattr(library, name), CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_int32))
        write(ctypes.addressof(place), None, 0)
        if place.raw[size_bytes : size_bytes + _TAIL_BYTES].strip(bytes([_FILL])):
            raise _other_version(library, f"returns more than {size_bytes} bytes from {name}")


def check_layout(library: Any) -> None:
    """Raise EngineStartFailed if the library's default parameters are not where this module expects them."""
    for name, expected in _DEFAULTS.items():
        params = getattr(library, name)()
        for field, _, value in expected:
            found = getattr(params, field)
            if found != value:
                raise _other_version(library, f"has {field} = {found} in place of {value} in {name}")


def _other_version(library: Any, difference: str) -> EngineStartFailed:
    version = library.llama_version().decode(errors="replace")
    remedy = f"install the version of {PACKAGE} that requirements/engine.txt pins"
    return start_failed(f"llama.cpp {version} {difference}; {remedy}")


def start_failed(reason: str) -> EngineStartFailed:
    return EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason)
