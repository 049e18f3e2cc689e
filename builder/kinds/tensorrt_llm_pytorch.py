"""The ``tensorrt_llm_pytorch`` engine: weights, arguments of TensorRT-LLM's ``LLM``, LoRA adapters by name.

Nothing is compiled: TensorRT-LLM 1.x runs the model's weights by PyTorch, on any GPU that it supports.
"""

from typing import Any

from builder.config.config import BuildConfig
from builder.config.llm_arguments import TABLE
from builder.kinds.adapters import check_rank
from builder.kinds.weights_plan import WeightsPlan
from builder.sizes.fit import MemoryArguments
from builder.steps import Work
from builder.weights.checkpoint import ModelConfig
from engine.adapters import TENSORRT_LLM_MODULES, AdapterShape
from engine.kinds import LLM_ARGS_NAME
from engine.pooling import MODULES_NAME
from errors.build_config import ConflictingBuildKeys, ModelUnusable

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size", "llm_args", "lora"})


class Plan(WeightsPlan):
    engine_kind = "tensorrt_llm_pytorch"
    table = TABLE
    file_name = LLM_ARGS_NAME

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        if (self.arguments.get("lora_config") or {}).get("lora_dir"):
            raise ConflictingBuildKeys(
                problem="gives llm_args.lora_config.lora_dir", remedy="name the adapters under lora instead"
            )
        # The library's own default refuses prompts of more than max_num_tokens.
        self.arguments.setdefault("enable_chunked_prefill", True)

    def max_seq_len(self, model: ModelConfig) -> int | None:
        return model.max_seq_len(self.arguments.get("max_seq_len"))

    def check_model(self, work: Work) -> None:
        if MODULES_NAME in work.model.files:
            raise work.model.unusable("it makes embeddings, which the engines vllm and transformers do")
        super().check_model(work)
        if work.facts.max_seq_len is None:
            raise work.model.unusable("its config.json has no max_position_embeddings; give max_seq_len")
        # The runner needs it, and the library does not tell the limit that it finds.
        self.arguments["max_seq_len"] = work.facts.max_seq_len

    def memory_arguments(self) -> MemoryArguments:
        return MemoryArguments(kv_dtype=(self.arguments.get("kv_cache_config") or {}).get("dtype"))

    def lora_arguments(self, adapters: list[AdapterShape]) -> dict[str, Any]:
        """Return the capacity for all adapters, their largest rank and the modules that they change."""
        listed = [modules for _, modules in adapters if modules]
        if len(listed) < len(adapters):
            problem = "the adapter_config.json of an adapter does not list its target_modules by name"
            raise ModelUnusable(model=", ".join(self.config.lora or ()), problem=problem)
        names = {name for each in listed for name in each}
        if unknown := sorted(names - TENSORRT_LLM_MODULES.keys()):
            problem = f"an adapter changes {', '.join(unknown)}, whose names in TensorRT-LLM are not known"
            raise ModelUnusable(model=", ".join(self.config.lora or ()), problem=problem)
        given = self.arguments.get("lora_config") or {}
        largest = max(rank for rank, _ in adapters)
        check_rank("llm_args.lora_config.max_lora_rank", given.get("max_lora_rank"), largest)
        config = {
            "lora_target_modules": sorted(TENSORRT_LLM_MODULES[name] for name in names),
            "max_lora_rank": largest,
            "max_loras": len(adapters),
            "max_cpu_loras": len(adapters),
        }
        return {"lora_config": config | given}
