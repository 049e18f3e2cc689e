"""The LLM API's names that this folder uses, and a check of them.

They are published, but differ between versions. If a version lacks a name, the engine does not start. If it
lacks an argument of ``SINCE``, requests that need the argument are refused. ``docs/updating.md`` tells how to
check another version.

NOTE: the check imports ``tensorrt_llm``, which initializes MPI.
"""

import inspect
from importlib.metadata import version

from errors.settings import MissingRequirement
from runner.engines.protocol.library import find, lacking

USES = {
    "tensorrt_llm.LLM": (
        "generate_async(inputs,sampling_params,*,streaming,lora_request) get_stats_async(timeout) shutdown()"
    ),
    "tensorrt_llm.SamplingParams": (
        "max_tokens min_tokens end_id ignore_eos pad_id stop_token_ids include_stop_str_in_output "
        "repetition_penalty presence_penalty frequency_penalty top_k top_p temperature min_p seed "
        "embedding_bias logprobs detokenize guided_decoding"
    ),
    "tensorrt_llm.executor.LoRARequest": "lora_name lora_int_id lora_path",
    "tensorrt_llm.llmapi.CompletionOutput": "token_ids logprobs finish_reason stop_reason",
    "tensorrt_llm.llmapi.GuidedDecodingParams": "json regex grammar",
    "tensorrt_llm.llmapi.RequestOutput": "abort() __aiter__()",
}
"""Parts of each name that are used; see ``runner.engines.protocol.library``."""
SINCE = {"cache_salt": "1.1", "priority": "1.3"}
"""Arguments of ``generate_async`` that a request may do without, and the first version that has them."""
_EVENTS = {"tensorrt_llm.LLM": "get_kv_cache_events_async(timeout)"}


def check_library(*, takes_priority: bool, has_events: bool) -> frozenset[str]:
    """Return which arguments of ``SINCE`` the library has. Raises E1008 with all that it lacks.

    Raises ImportError if the library, or something that it needs, can't be imported.
    """
    missing = lacking(USES) + (lacking(_EVENTS) if has_events else [])
    if missing:
        raise _lacks(", ".join(missing), "install a version from 1.0 on")
    parameters = inspect.signature(find("tensorrt_llm.LLM").generate_async).parameters
    if takes_priority and "priority" not in parameters:
        argument = "tensorrt_llm.LLM.generate_async.priority"
        raise _lacks(argument, f"leave scheduling_policy out, or install {SINCE['priority']} or later")
    return frozenset(SINCE.keys() & parameters.keys())


def _lacks(what: str, remedy: str) -> MissingRequirement:
    return MissingRequirement(what=f"{what} in TensorRT-LLM {version('tensorrt_llm')}", remedy=remedy)
