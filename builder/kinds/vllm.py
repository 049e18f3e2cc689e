"""The ``vllm`` engine: weights, the arguments of vLLM's engine, LoRA adapters by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.config.vllm_arguments import TABLE
from builder.config.vllm_rules import check_split, check_together
from builder.kinds.adapters import check_rank
from builder.kinds.weights_plan import WeightsPlan
from builder.sizes.fit import BATCH, BATCH_TOKENS, GPU_SHARE, MemoryArguments
from builder.sizes.memory import GIB
from builder.sizes.model_shape import UnknownShape, shape_of
from builder.sizes.precision import named_bits
from builder.weights.checkpoint import ModelConfig
from engine.adapters import RANKS, AdapterShape
from engine.kinds import ENGINE_ARGS_NAME
from errors.build_config import ConflictingBuildKeys

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size", "vllm", "lora"})

_NO_DRAFT_MODELS = ("ngram", "[ngram]")
"""Names of methods that vLLM also reads as the draft model."""
_LORA_RANK = 16
"""vLLM's default of max_lora_rank."""
_LENGTHENED = ("linear", "dynamic")
"""Kinds of rotary scaling by whose factor vLLM multiplies max_position_embeddings."""


class Plan(WeightsPlan):
    engine_kind = "vllm"
    table = TABLE
    file_name = ENGINE_ARGS_NAME

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        given = self.arguments
        self._max_loras = given.get("max_loras", len(config.lora or {}) or 1)
        check_together({**given, "max_loras": self._max_loras})
        draft = (given.get("speculative_config") or {}).get("model") or given.get("spec_model")
        if isinstance(draft, str) and draft not in _NO_DRAFT_MODELS and not Path(draft).is_absolute():
            place = "give the path of a folder on the runner's machine"
            self.notes = [
                f"draft model   {draft} is not in the engine, and a start downloads nothing: {place}"
            ]
        if (replicas := given.get("data_parallel_size", 1)) > 1:
            self.notes = [
                *self.notes,
                f"replicas      {replicas}: the sizes and numbers of GPUs are those of each",
            ]

    def check_values(self, values: Mapping[str, Any]) -> None:
        super().check_values(values)
        given = self.arguments
        if "hf_overrides" in given:
            return
        try:
            shape = shape_of(values)
        except UnknownShape:
            return
        check_split("tensor_parallel_size", shape.num_heads, "attention heads", given)
        if given.get("enable_expert_parallel") and shape.is_known and not shape.num_experts:
            problem = f"gives vllm.enable_expert_parallel, and a {shape.model_type} model has no experts"
            raise ConflictingBuildKeys(problem=problem, remedy="leave it out")

    def max_seq_len(self, model: ModelConfig) -> int | None:
        """Return the limit in tokens; None if unknown, or if vLLM chooses what fits (-1)."""
        asked = self.arguments.get("max_model_len")
        if asked == -1:
            return None
        if "hf_overrides" in self.arguments or _may_be_longer(model):
            return asked or model.max_position_embeddings
        return model.max_seq_len(asked, " (or vllm.hf_overrides must change that)")

    def memory_arguments(self) -> MemoryArguments:
        given = self.arguments
        online = (given.get("quantization_config") or {}).get("linear")
        if isinstance(online, dict):
            online = online.get("weight")
        kv_bytes = given.get("kv_cache_memory_bytes") or None
        adapters = self._max_loras if given.get("enable_lora") or self.config.lora else 0
        return MemoryArguments(
            weight_bits=named_bits(given.get("quantization")) or named_bits(online),
            kv_dtype=given.get("kv_cache_dtype"),
            # With kv_cache_memory_bytes, vLLM ignores gpu_memory_utilization.
            gpu_share=given.get("gpu_memory_utilization", GPU_SHARE) if kv_bytes is None else 1.0,
            offloaded_bytes=int(given.get("cpu_offload_gb", 0) * GIB),
            kv_bytes=kv_bytes,
            batch=given.get("max_num_seqs") or BATCH,
            batch_tokens=given.get("max_num_batched_tokens") or BATCH_TOKENS,
            adapter_ranks=adapters * given.get("max_lora_rank", _LORA_RANK),
        )

    def lora_arguments(self, adapters: list[AdapterShape]) -> dict[str, Any]:
        """Return the capacity for all adapters at once and for the largest rank among them."""
        largest = max(rank for rank, _ in adapters)
        check_rank("vllm.max_lora_rank", self.arguments.get("max_lora_rank"), largest)
        room = next(rank for rank in RANKS if rank >= largest)
        given = {"max_loras": len(adapters), "max_lora_rank": room}
        return {**given, **self.arguments, "enable_lora": True}


def _may_be_longer(model: ModelConfig) -> bool:
    """Return True if vLLM takes more than ``max_position_embeddings`` tokens, as with Command R."""
    scaling = model.values.get("rope_scaling") or model.values.get("rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    return kind in _LENGTHENED or model.values.get("model_max_length") is not None
