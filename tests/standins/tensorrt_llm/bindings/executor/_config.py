"""Enumerations and configuration classes, with the published names and defaults."""

from __future__ import annotations

from enum import Enum
from functools import partial
from types import SimpleNamespace

from ._pybind import Arg, Bound, boolean, check, f32, i32, instance, list_of, optional, text, u64


class ModelType(Enum):
    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(Enum):
    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(Enum):
    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class CommunicationMode(Enum):
    LEADER = 0
    ORCHESTRATOR = 1


_Mode = Enum("_Mode", "Auto TopK TopP TopKTopP BeamSearch Medusa Lookahead ExplicitDraftTokens Eagle")
DecodingMode = SimpleNamespace(**{name: partial(_Mode.__getitem__, name) for name in _Mode.__members__})
"""Made by its factories alone."""


class SchedulerConfig(Bound):
    READ_ONLY = True
    ARGS = (
        Arg(
            "capacity_scheduler_policy",
            instance(CapacitySchedulerPolicy),
            CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
        ),
    )


class KvCacheConfig(Bound):
    POSITIONAL = 10
    ARGS = (
        Arg("enable_block_reuse", boolean, False),
        Arg("max_tokens", optional(i32), None),
        Arg("max_attention_window", optional(list_of(i32)), None),
        Arg("sink_token_length", optional(i32), None),
        Arg("free_gpu_memory_fraction", optional(f32), None),
        Arg("host_cache_size", optional(u64), None),
        Arg("onboard_blocks", boolean, True),
        Arg("cross_kv_cache_fraction", optional(f32), None),
    )

    def check(self) -> None:
        values = self._values
        check(values["max_tokens"] is None or values["max_tokens"] > 0, "maxTokens.value() > 0")
        fraction = values["free_gpu_memory_fraction"]
        check(fraction is None or 0 <= fraction < 1, "freeGpuMemoryFraction >= 0.F and < 1.F")


class ParallelConfig(Bound):
    ARGS = (
        Arg("communication_mode", instance(CommunicationMode), CommunicationMode.LEADER),
        Arg("device_ids", optional(list_of(i32)), None),
        Arg("participant_ids", optional(list_of(i32)), None),
    )


class PeftCacheConfig(Bound):
    READ_ONLY = True
    ARGS = (
        Arg("optimal_adapter_size", i32, 8),
        Arg("max_adapter_size", i32, 64),
        Arg("device_cache_percent", optional(f32), None),
        Arg("host_cache_size", optional(u64), None),
    )


class EagleConfig(Bound):
    READ_ONLY = True
    ARGS = (Arg("eagle_choices", optional(list_of(list_of(i32))), None),)


class DecodingConfig(Bound):
    ARGS = (
        Arg("decoding_mode", optional(instance(_Mode)), None),
        Arg("medusa_choices", optional(list_of(list_of(i32))), None),
        Arg("eagle_config", optional(instance(EagleConfig)), None),
    )


class ExtendedRuntimePerfKnobConfig(Bound):
    """NOTE: the constructor takes two; the CUDA graph's are properties alone."""

    ARGS = (Arg("multi_block_mode", boolean, True), Arg("enable_context_fmha_fp32_acc", boolean, False))
    EXTRA = (Arg("cuda_graph_mode", boolean, False), Arg("cuda_graph_cache_size", i32, 0))


class SpeculativeDecodingConfig(Bound):
    ARGS = (Arg("fast_logits", boolean, False),)


class GuidedDecodingConfig(Bound):
    class GuidedDecodingBackend(Enum):
        XGRAMMAR = 0

    ARGS = (
        Arg("backend", instance(GuidedDecodingBackend)),
        Arg("encoded_vocab", optional(list_of(text)), None),
        Arg("tokenizer_str", optional(text), None),
        Arg("stop_token_ids", optional(list_of(i32)), None),
    )


class ExecutorConfig(Bound):
    ARGS = (
        Arg("max_beam_width", i32, 1),
        Arg("scheduler_config", instance(SchedulerConfig), SchedulerConfig),
        Arg("kv_cache_config", instance(KvCacheConfig), KvCacheConfig),
        Arg("enable_chunked_context", boolean, False),
        Arg("normalize_log_probs", boolean, True),
        Arg("iter_stats_max_iterations", i32, 1000),
        Arg("request_stats_max_iterations", i32, 0),
        Arg("batching_type", instance(BatchingType), BatchingType.INFLIGHT),
        Arg("max_batch_size", optional(i32), None),
        Arg("max_num_tokens", optional(i32), None),
        Arg("parallel_config", optional(instance(ParallelConfig)), None),
        Arg("peft_cache_config", instance(PeftCacheConfig), PeftCacheConfig),
        Arg("decoding_config", optional(instance(DecodingConfig)), None),
        Arg("gpu_weights_percent", f32, 1.0),
        Arg("max_queue_size", optional(i32), None),
        Arg(
            "extended_runtime_perf_knob_config",
            instance(ExtendedRuntimePerfKnobConfig),
            ExtendedRuntimePerfKnobConfig,
        ),
        Arg("spec_dec_config", optional(instance(SpeculativeDecodingConfig)), None),
        Arg("guided_decoding_config", optional(instance(GuidedDecodingConfig)), None),
    )

    def check(self) -> None:
        check(self._values["max_beam_width"] > 0, "mMaxBeamWidth > 0")
        queue = self._values["max_queue_size"]
        check(queue is None or queue >= 0, "maxQueueSize >= 0")
