"""Rules about several of vLLM's arguments, which vLLM itself checks only when the engine starts.

A dot leads into a mapping: ``speculative_config.model``.
"""

from collections.abc import Mapping
from typing import Any

from builder.config.config import shown
from errors.build_config import ConflictingBuildKeys, InvalidBuildValue

_ORDERED = (
    ("max_num_seqs", "max_num_batched_tokens"),
    ("max_loras", "max_cpu_loras"),
    ("speculative_config.prompt_lookup_min", "speculative_config.prompt_lookup_max"),
    ("long_prefill_token_threshold", "max_model_len"),
)
"""Pairs of which the first may be at most the second, unless the second is -1 (what fits)."""
_ORDERED_WHOLE = (("max_model_len", "max_num_batched_tokens"),)
"""Pairs with the same rule if ``enable_chunked_prefill`` is false."""
_SAME = (
    ("attention_backend", "attention_config.backend"),
    ("cudagraph_capture_sizes", "compilation_config.cudagraph_capture_sizes"),
    ("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size"),
    ("spec_method", "speculative_config.method"),
    ("spec_model", "speculative_config.model"),
    ("spec_tokens", "speculative_config.num_speculative_tokens"),
)
"""Pairs of names of one argument."""
_EXECUTORS = ("ray", "mp", "uni", "external_launcher")
_NEEDED = (
    ("structured_outputs_config.disable_any_whitespace", "backend", ("xgrammar", "guidance")),
    ("structured_outputs_config.disable_additional_properties", "backend", ("guidance",)),
    ("kv_transfer_config.kv_connector", "kv_role", ("kv_producer", "kv_consumer", "kv_both")),
)
"""Keys of a mapping, another key that has to stand beside each, and its values."""
_COUNTED_METHODS = ("ngram", "ngram_gpu")
"""Methods for which nothing but the config tells the number of draft tokens."""
_MODEL_METHODS = (None, "draft_model", "eagle", "eagle3")
"""Methods that need a draft model."""


def check_together(arguments: Mapping[str, Any]) -> None:
    """Raise E1203 or E1204 for arguments that are right alone and wrong together."""
    if arguments.get("max_model_len") == 0:
        expected = "at least 1, or -1 for what fits"
        raise InvalidBuildValue(key="vllm.max_model_len", expected=expected, value="0")
    backend = arguments.get("distributed_executor_backend")
    if backend is not None and backend not in _EXECUTORS and "." not in backend:
        expected = f"one of {', '.join(_EXECUTORS)}, or a class as package.module.Class"
        raise InvalidBuildValue(
            key="vllm.distributed_executor_backend", expected=expected, value=shown(backend)
        )
    if arguments.get("prefill_context_parallel_size", 1) == 1:
        ranks = arguments.get("tensor_parallel_size", 1)
        check_split("decode_context_parallel_size", ranks, "tensor-parallel ranks", arguments)
    whole = _ORDERED_WHOLE if arguments.get("enable_chunked_prefill") is False else ()
    for small, large in (*_ORDERED, *whole):
        low, high = _find(arguments, small), _find(arguments, large)
        if isinstance(low, int) and isinstance(high, int) and low > high > 0:
            problem = f"leads to vllm.{small} {low} and vllm.{large} {high}"
            raise ConflictingBuildKeys(problem=problem, remedy=f"{small} may be at most {large}")
    for one, other in _SAME:
        if _find(arguments, one) is not None and _find(arguments, other) is not None:
            problem = f"gives vllm.{one} and vllm.{other}, which are the same"
            raise ConflictingBuildKeys(problem=problem, remedy="leave one of them out")
    for key, beside, values in _NEEDED:
        needed = f"{key.partition('.')[0]}.{beside}"
        if _find(arguments, key) and _find(arguments, needed) not in values:
            remedy = f"give vllm.{needed} {' or '.join(values)} too"
            raise ConflictingBuildKeys(problem=f"gives vllm.{key}", remedy=remedy)
    _check_speculation(arguments)


def check_split(name: str, count: int, what: str, arguments: Mapping[str, Any]) -> None:
    """Raise E1203 if ``count`` can't be divided by the argument ``name``."""
    parts = arguments.get(name)
    if parts and count % parts:
        expected = f"a divisor of {count}, the number of {what}"
        raise InvalidBuildValue(key=f"vllm.{name}", expected=expected, value=shown(parts))


def _check_speculation(arguments: Mapping[str, Any]) -> None:
    given = arguments.get("speculative_config")
    shorthand = {"method": "spec_method", "model": "spec_model", "num_speculative_tokens": "spec_tokens"}
    found = {key: _find(arguments, f"speculative_config.{key}") for key in shorthand}
    found = {key: arguments.get(shorthand[key]) if value is None else value for key, value in found.items()}
    if given is None and not any(found.values()):
        return
    method, missing = found["method"], ""
    if method in _MODEL_METHODS and found["model"] is None:
        missing = "model"
    elif method in _COUNTED_METHODS and found["num_speculative_tokens"] is None:
        missing = "num_speculative_tokens"
    if missing:
        named = f" with the method {method}" if method else ", and no method that needs none"
        problem = f"gives no vllm.speculative_config.{missing}{named}"
        raise ConflictingBuildKeys(problem=problem, remedy="add it, or leave speculative_config out")


def _find(arguments: Mapping[str, Any], name: str) -> Any:
    """Return the value at ``name``; None if there is none."""
    place, _, key = name.rpartition(".")
    within = arguments.get(place) if place else arguments
    if not isinstance(within, Mapping):
        return None
    return within.get(key, within.get(key.replace("_", "-")))
