"""The arguments of vLLM's engine in a build config: their types, and those that a config can't set.

``tools/list_vllm_arguments.py`` writes ``vllm_arguments.json`` from the pinned vLLM.
"""

import difflib
import json
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from builder.config.config import BuildConfig, shown
from errors.build_config import ConflictingBuildKeys, InvalidBuildValue, UnknownBuildKey

_DATA = Path(__file__).resolve().with_suffix(".json")

_SAME = {"dtype": "dtype", "max_seq_len": "max_model_len", "max_batch_size": "max_num_seqs"}
"""Keys of every engine kind, and their names in vLLM."""


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    """Map each argument to its reason, from the arguments of each reason."""
    return {name: reason for reason, names in reasons.items() for name in names.split()}


_DECIDED = _by_name(
    {
        "it is given by model_id, model_path or model_tar_url": (
            "model model_weights revision code_revision hf_config_path download_dir"
        ),
        "the engine has its tokenizer, and vLLM gets token ids only": (
            "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init"
        ),
        "each request has its sampling parameters": "generation_config override_generation_config",
        "the model's files tell whether it generates or embeds": "runner convert pooler_config",
        "the engine slot sets it": (
            "served_model_name tokens_only enable_prompt_embeds io_processor_plugin disable_log_stats "
            "scheduler_cls enable_log_requests aggregate_engine_logging per_request_spec_decode_metrics"
        ),
        "use the key hf_token of the build config, which is kept secret": "hf_token",
        "the build config has a key of this name": "trust_remote_code",
        "it names code, which an engine does not have": "model_class_overrides",
        "set VLLM_LOGGING_LEVEL of the runner": "log_config_file log_level logging_config",
    }
)
_WITHOUT_EFFECT = _by_name(
    {
        "nothing sends it other weights": "weight_transfer_config",
        "nothing calls the extension": "worker_extension_cls",
        "nothing starts the profiler": "profiler_config",
        "nothing changes the number of GPUs of an engine": "elastic_ep_max_dp_size enable_elastic_ep",
        "run one runner for each replica": "dp_sync_interval enable_fault_tolerance fault_tolerance_config",
        "no response has the experts": "aux_output_config enable_return_routed_experts",
        "no response has it": "return_sampling_mask",
        "no request can give the tokens to replay": "enable_trace_replay",
        "no request asks for a watermark": "watermark_config",
        "nothing classifies": "max_lora_cls_labels",
        "vLLM's own API server has this limit; set MAX_QUEUE_MS of the runner": (
            "max_num_queued_reqs max_num_queued_tokens"
        ),
        "every token is streamed": "stream_interval",
        "the runner makes the prompts": "renderer_num_workers",
        "set OTEL_EXPORTER_OTLP_ENDPOINT of the runner": "otlp_traces_endpoint collect_detailed_traces",
        "vLLM's own metrics are not served; see docs/observability.md": (
            "cudagraph_metrics custom_histogram_buckets enable_mfu_metrics enable_mm_processor_stats "
            "kv_cache_metrics kv_cache_metrics_sample show_hidden_metrics_for_version"
        ),
        "requests have text only": (
            "allowed_local_media_path allowed_media_domains default_mm_loras ec_manager_config "
            "ec_transfer_config enable_mm_embeds enable_shm_tensor_arena enable_tower_connector_lora "
            "interleave_mm_strings media_io_kwargs mm_device_do_normalize mm_encoder_only "
            "mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_device video_pruning_method "
            "video_pruning_rate"
        ),
    }
)
"""Arguments that vLLM's server honours and this runner can't. Their value may be off or empty."""
_GONE = {
    "disable_log_requests": "leave it out: requests are not logged",
    "swap_space": "leave it out: vLLM recomputes instead of swapping",
    "worker_use_ray": "write distributed_executor_backend: ray",
    "max_context_len_to_capture": "write max_cudagraph_capture_size",
    "max_seq_len_to_capture": "write max_cudagraph_capture_size",
    "guided_decoding_backend": "write structured_outputs_config",
    "calculate_kv_scales": "leave it out: vLLM takes the scales from the model's files",
    "max_num_partial_prefills": "leave it out: long_prefill_token_threshold limits each prompt's part",
    "max_long_partial_prefills": "leave it out: long_prefill_token_threshold limits each prompt's part",
    "override_attention_dtype": "leave it out: vLLM chooses it",
}
"""Names of earlier versions of vLLM."""

_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "boolean": ("true or false", (bool,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "string": ("text", (str,)),
    "array": ("a list", (list,)),
    "object": ("a mapping", (dict,)),
    "null": ("empty", (NoneType,)),
}
"""JSON type -> words for it and Python's types."""
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least {}", operator.ge),
    "gt": ("above {}", operator.gt),
    "le": ("at most {}", operator.le),
    "lt": ("below {}", operator.lt),
}


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_DATA.read_text())
    return data


def library_version() -> str:
    """Return the version of vLLM that has these arguments."""
    return str(_data()["vllm"])


def engine_arguments(config: BuildConfig) -> dict[str, Any]:
    """Return all arguments of the config, checked, by vLLM's names. Raises E1202, E1203 and E1204."""
    arguments = dict(config.vllm or {})
    for name, value in arguments.items():
        _check(name, value)
    for key, name in _SAME.items():
        given = getattr(config, key)
        if given is None:
            continue
        if arguments.setdefault(name, given) != given:
            raise ConflictingBuildKeys(
                problem=f"gives {key} {given} and vllm.{name} {arguments[name]}, which are the same",
                remedy="leave one of them out",
            )
    if config.trust_remote_code:
        arguments["trust_remote_code"] = True
    return arguments


def _check(name: str, value: object) -> None:
    is_replica = name.startswith("data_parallel_")
    reason = "run one runner for each replica" if is_replica else _DECIDED.get(name)
    if reason is not None:
        raise ConflictingBuildKeys(problem=f"gives vllm.{name}", remedy=f"leave it out: {reason}")
    if name in _WITHOUT_EFFECT and value not in (None, False, {}, []):
        raise ConflictingBuildKeys(
            problem=f"gives vllm.{name}", remedy=f"leave it out: {_WITHOUT_EFFECT[name]}"
        )
    known = _data()["arguments"]
    if name not in known:
        raise UnknownBuildKey(
            key=name, where=f"vLLM {library_version()}'s engine arguments", remedy=_near(name)
        )
    problem = _problem(known[name], value)
    if problem is not None:
        raise InvalidBuildValue(key=f"vllm.{name}", expected=problem, value=shown(value))


def _near(name: str) -> str:
    if name in _GONE:
        return _GONE[name] + "."
    names = [each for each in _data()["arguments"] if each not in _DECIDED]
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {nearest[0]}?" if nearest else "docs/vllm.md has a link to the list."


def _problem(described: Mapping[str, Any], value: object) -> str | None:
    """Return what the value must be; None if it is."""
    if not any(_is(kind, value) for kind in described["types"]):
        return " or ".join(_TYPES[kind][0] for kind in described["types"])
    choices = described.get("choices")
    if choices is not None and value is not None and value not in choices:
        near = difflib.get_close_matches(str(value), map(str, choices), n=1)
        return f"{near[0]} (the nearest), or another" if near and len(choices) > 12 else f"one of {choices}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            return "a finite number"
        for bound, (text, holds) in _BOUNDS.items():
            if bound in described and not holds(value, described[bound]):
                return text.format(described[bound])
    return None


def _is(kind: str, value: object) -> bool:
    return kind == "boolean" if isinstance(value, bool) else isinstance(value, _TYPES[kind][1])
