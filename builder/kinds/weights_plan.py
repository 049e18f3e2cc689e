"""The plan of an engine that is weights, arguments of its library and LoRA adapters: nothing is compiled."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.arguments import ArgumentTable
from builder.config.config import BuildConfig
from builder.kinds.adapters import adapter_shapes, adapter_steps, check_adapters
from builder.kinds.transformers import place_configuration, place_weights
from builder.sizes.fit import MemoryArguments
from builder.sizes.size_lines import size_lines
from builder.steps import EnginePlan, Step, Work, model_steps, place_fast_tokenizer
from builder.survey import survey
from builder.weights.checkpoint import ModelConfig, read_config, read_object
from builder.weights.files import place
from builder.weights.model_files import Model
from engine.adapters import AdapterShape
from engine.tar.manifest import EngineFacts, Library

_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files of AutoGPTQ, AutoAWQ and ModelOpt that describe a quantization instead of config.json."""
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files from which a library makes the processor of a model with images."""
_PARALLEL = ("tensor", "pipeline", "prefill_context", "context", "data")
"""Kinds of parallelism whose sizes multiply to the number of GPUs."""
_DTYPES = {"half": "float16", "float": "float32", "auto": None}


class WeightsPlan(EnginePlan):
    """``table``: the library's arguments. ``file_name``: of the engine's file that has them."""

    engine_kind: str
    table: ArgumentTable
    file_name: str

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        self.arguments = self.table.read(config)
        check_adapters(config)

    @abstractmethod
    def max_seq_len(self, model: ModelConfig) -> int | None:
        """Return the limit in tokens; None if it is not known. Raises E1203."""

    @abstractmethod
    def memory_arguments(self) -> MemoryArguments:
        """Return what the arguments change about GPU memory."""

    @abstractmethod
    def lora_arguments(self, adapters: list[AdapterShape]) -> dict[str, Any]:
        """Return the arguments for these adapters; those of the config are kept."""

    def check_values(self, values: Mapping[str, Any]) -> None:
        self.max_seq_len(ModelConfig(values))

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        self.check_values(values)
        return size_lines(
            values,
            self._dtype,
            self.max_seq_len(ModelConfig(values)),
            needs_gpu=True,
            embeds=self.embeds,
            section=self.table.section,
            file_bytes=self.file_bytes,
            file_dtype=self.file_dtype,
            arguments=self.memory_arguments(),
        )

    def steps(self) -> Sequence[Step]:
        given = ", ".join(f"{name}={value}" for name, value in sorted(self.arguments.items()))
        library = f"{self.table.words} {self.table.version}"
        on_hub = self.config.model_path is None and self.config.model_tar_url is None
        return [
            *([Step("check the plan against the model's config.json", self._check_listed)] if on_hub else []),
            *model_steps(self.config),
            Step("check model", self.check_model),
            Step("weights (safetensors; quantized weights unchanged)", place_weights),
            Step("tokenizer", place_fast_tokenizer),
            *adapter_steps(self.config),
            Step(f"{self.file_name} for {library} ({given or 'its defaults'})", self._write_arguments),
        ]

    def _check_listed(self, work: Work) -> None:
        """Check the plan before the weights are downloaded."""
        self.check_values(survey(self.config, work, with_weights=True).values)

    def check_model(self, work: Work) -> None:
        model = read_config(work.model)
        self.check_values(model.values)
        length = self.max_seq_len(model)
        work.facts = EngineFacts(
            engine_kind=self.engine_kind,
            library=Library(name=self.table.library, version=self.table.version),
            world_size=math.prod(self.arguments.get(f"{each}_parallel_size", 1) for each in _PARALLEL),
            dtype=self._dtype or model.dtype,
            quantization=self.arguments.get("quantization") or _quantization(work.model, model),
            max_batch_size=self.arguments.get(self.table.same["max_batch_size"]),
            max_input_len=length - 1 if length is not None and length > 1 else None,
            max_seq_len=length,
        )
        place_configuration(work)
        for name in (*_QUANTIZATION_FILES, *_PROCESSOR_FILES):
            if name in work.model.files:
                place(work.model.files[name], work.directory / name)

    @property
    def _dtype(self) -> str | None:
        asked = self.arguments.get("dtype")
        return _DTYPES.get(asked, asked) if asked is not None else None

    def _write_arguments(self, work: Work) -> None:
        arguments = self.arguments
        if work.config.lora:
            arguments = arguments | self.lora_arguments(adapter_shapes(work))
        text = json.dumps(arguments, indent=2, sort_keys=True) + "\n"
        (work.directory / self.file_name).write_text(text)


def _quantization(model: Model, model_config: ModelConfig) -> str | None:
    if model_config.quantization is not None:
        return model_config.quantization
    found = next((name for name in _QUANTIZATION_FILES if name in model.files), None)
    if found is None:
        return None
    described = read_object(model, found)
    inner = described.get("quantization")
    method = described.get("quant_method") or (inner.get("quant_algo") if isinstance(inner, dict) else None)
    if method:
        return str(method).lower()
    return {"quantize_config.json": "gptq", "quant_config.json": "awq"}.get(found)
