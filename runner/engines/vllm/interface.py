"""vLLM's inner names that this folder uses, and a check of them. Only this module imports from ``vllm``.

They are not public: an update may move or change them (docs/updating.md). ``USES`` lists each name with the
parts of it that are used. ``from runner.engines.vllm.interface import SamplingParams`` imports it from vLLM
then and not earlier: the core's process and this one begin to import vLLM at a time of their own.

Behavior that no check at the start can see, and where it is used:

* The engine core starts by ``utils.get_mp_context().Process(target, name, kwargs)``, with ``vllm_config`` and
  ``tensor_queue`` in ``kwargs`` and the name ``CORE_NAME`` if there is one core (``core_process``).
* ``registry._run_in_subprocess`` inspects a model's class unless ``VLLM_CACHE_ROOT`` has the result, which is
  never None. The function can be pickled by cloudpickle (``core_process``).
* ``SyncMPClient`` takes what ``outputs_queue`` has; ``get_output`` raises an exception that it finds there.
  It sends messages by ``_send_input`` alone, to ``core_engine``, and the core processes them in order. With
  ``data_parallel_size`` there are several ``core_engines``, and the result of a call comes to
  ``utility_results`` (``client``).
* ``start_worker_monitor(inline=True)`` returns when a rank ends (``client``). Ranks start in the threads of a
  ``ThreadPoolExecutor`` (``rank_threads``).
* ``scheduler_config.scheduler_cls`` is None unless vLLM needs a certain scheduler (``client``).
* The core's sampling parameters are not checked again: limits hold by ``request.check_limits``.
* ``collective_rpc("reload_weights")`` reads the weights again after a sleep of level 2, and drops all LoRA
  adapters. A request ends with ``ABORT`` only for a sleep, or when its replica is ended because another has
  died: requests that are aborted here are forgotten (``engine``).
* A ``MultiModalBudget`` has the model's ``processor``, ``mm_limits`` by modality and ``encoder_cache_size``.
  The processor's result has ``prompt_token_ids``, and by modality ``mm_kwargs``, ``mm_hashes`` (of content
  and model, part of the keys of cached prefixes) and ``mm_placeholders`` (``images``).
* The first output of a request alone has ``prefill_stats``. The id of the token that ended a request is its
  ``stop_reason`` (``engine``, ``request``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from errors.coded_error import single_spaced
from errors.engines import VllmMissing
from errors.settings import MissingRequirement
from runner.engines.protocol.library import find, lacking

PINNED_VERSION = "0.33.0"
"""Version that this adapter is tested with."""

CORE_NAME = "EngineCore"
CORE_MODULES = ("vllm.v1.engine.core", "vllm.v1.worker.gpu_worker")
"""Without these modules, an engine only starts later."""
SETS_LIBRARY_PATH = "VLLM_ENABLE_CUDA_COMPATIBILITY"
"""Variable with which importing vLLM sets ``LD_LIBRARY_PATH``, which Linux reads at a process's start."""
RANKS_MODULE = "vllm.v1.executor.multiproc_executor"
ROCM_VARIABLES = "AITER_"
"""Start of the names of variables that vLLM sets for AMD's GPUs, also where there is none."""

_SCHEDULER = "make_stats get_request_counts() get_kv_cache_usage()"
USES = {
    "vllm.AsyncEngineArgs": (
        "model skip_tokenizer_init generation_config disable_log_stats max_num_seqs dtype runner "
        "mm_processor_cache_gb pooler_config gpu_memory_utilization tensor_parallel_size scheduling_policy "
        "create_engine_config(usage_context) "
        "enable_lora max_loras max_cpu_loras max_lora_rank enable_sleep_mode "
        "speculative_config per_request_spec_decode_metrics sleep_preserve_parameter_names kv_events_config "
        "nnodes node_rank master_addr master_port distributed_executor_backend"
    ),
    "vllm.config.CacheConfig": "block_size num_gpu_blocks",
    "vllm.config.LoRAConfig": "max_loras max_cpu_loras max_lora_rank",
    "vllm.config.ModelConfig": (
        "max_model_len enable_sleep_mode get_vocab_size() supports_multimodal_inputs is_encoder_decoder"
    ),
    "vllm.config.ParallelConfig": "data_parallel_size numa_bind",
    "vllm.config.PoolerConfig": "seq_pooling_type use_activation",
    "vllm.config.SchedulerConfig": "max_num_seqs policy async_scheduling scheduler_cls",
    "vllm.config.VllmConfig": (
        "model_config cache_config scheduler_config parallel_config lora_config speculative_config"
    ),
    "vllm.envs": (
        "VLLM_CACHE_ROOT VLLM_HOST_IP VLLM_NO_USAGE_STATS VLLM_USE_FLASHINFER_SAMPLER "
        "VLLM_WORKER_MULTIPROC_METHOD VLLM_MAX_NUM_BAD_WORDS VLLM_MAX_BAD_WORDS_TOTAL_TOKENS "
        f"VLLM_ENABLE_STARTUP_PLAN {SETS_LIBRARY_PATH}"
    ),
    "vllm.lora.request.LoRARequest": "() lora_name lora_int_id lora_path",
    "vllm.model_executor.models.registry": "_run_in_subprocess(fn)",
    "vllm.multimodal.MULTIMODAL_REGISTRY": "",
    "vllm.multimodal.encoder_budget.MultiModalBudget": "__init__(vllm_config,mm_registry,*,enable_cache)",
    "vllm.multimodal.cache.base.MultiModalCache": "get_item_size(value)",
    "vllm.multimodal.image": "open_image(fp)",
    "vllm.multimodal.inputs.MultiModalFeatureSpec": "() data modality identifier mm_position mm_hash",
    "vllm.multimodal.inputs.PlaceholderRange": "offset get_num_embeds()",
    "vllm.multimodal.media.image.ImageMediaIO": "load_bytes(data)",
    "vllm.multimodal.processing.BaseMultiModalProcessor": "apply(inputs,timing_ctx)",
    "vllm.multimodal.processing.BaseProcessingInfo": "parse_mm_data(mm_data)",
    "vllm.multimodal.processing.ProcessorInputs": "() prompt mm_data_items",
    "vllm.multimodal.processing.context.TimingContext": "enabled",
    "vllm.outputs.RequestError": "message retryable",
    "vllm.plugins": "load_general_plugins()",
    "vllm.pooling_params.PoolingParams": "() task use_activation skip_reading_prefix_cache",
    "vllm.sampling_params.SamplingParams": (
        "() presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed "
        "ignore_eos stop_token_ids max_tokens min_tokens logprobs logit_bias detokenize skip_clone "
        "structured_outputs _bad_words_token_ids"
    ),
    "vllm.sampling_params.StructuredOutputsParams": "() json regex grammar _backend",
    "vllm.usage.usage_lib.UsageContext": "OPENAI_API_SERVER",
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler": _SCHEDULER,
    "vllm.v1.core.sched.scheduler.Scheduler": _SCHEDULER,
    "vllm.v1.engine.EngineCoreOutput": (
        "request_id new_token_ids new_logprobs pooling_output finish_reason stop_reason prefill_stats error "
        "spec_decode_metrics"
    ),
    "vllm.v1.engine.EngineCoreOutputs": "outputs scheduler_stats finished_requests engine_index",
    "vllm.v1.engine.EngineCoreRequest": (
        "() request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request "
        "cache_salt data_parallel_rank priority"
    ),
    "vllm.v1.engine.EngineCoreRequestType": "ADD ABORT UTILITY",
    "vllm.v1.engine.FinishReason": "STOP LENGTH ABORT",
    "vllm.v1.engine.core_client.SyncMPClient": (
        "__init__(vllm_config,executor_class,log_stats) _send_input(request_type,request) get_output() "
        "add_request(request) abort_requests(request_ids) is_sleeping() shutdown(timeout) "
        "call_utility(method) add_lora(lora_request) remove_lora(lora_id) sleep(level,mode) wake_up(tags) "
        "collective_rpc(method)"
    ),
    "vllm.v1.engine.utils": "get_mp_context()",
    "vllm.v1.executor.Executor": "get_class(vllm_config)",
    RANKS_MODULE: "ThreadPoolExecutor",
    f"{RANKS_MODULE}.MultiprocExecutor": (
        "__init__(vllm_config,monitor_workers) start_worker_monitor(inline)"
    ),
    "vllm.v1.metrics.stats.PrefillStats": "num_cached_tokens",
    "vllm.v1.metrics.stats.RequestSpecDecodeMetrics": "histogram num_draft_tokens",
    "vllm.v1.metrics.stats.SchedulerStats": "() num_running_reqs num_waiting_reqs kv_cache_usage",
    "vllm.v1.outputs.LogprobsLists": "logprob_token_ids logprobs",
}
"""Names in vLLM -> their fields, members and methods that are used (see ``protocol.library``)."""

_PATHS = {path.rpartition(".")[2]: path for path in USES}


def __getattr__(name: str) -> Any:
    if name not in _PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find(_PATHS[name])


def check_vllm(log: Callable[[str], None]) -> None:
    """Raise E1008 with all that this vLLM lacks, E2201 if it can't be imported; log an untested version."""
    try:
        found, missing = version("vllm"), lacking(USES)
    except Exception as exc:  # Importing a broken installation may raise anything.
        reason = f"{type(exc).__name__}: {single_spaced(exc)}"
        raise VllmMissing(python=sys.executable, reason=reason) from exc
    if missing:
        raise MissingRequirement(
            what=f"{', '.join(missing)} in vLLM {found}",
            remedy=f"install vllm=={PINNED_VERSION}, which is supported",
        )
    if found != PINNED_VERSION:
        log(f"vLLM {found} is installed; only {PINNED_VERSION} is tested")
