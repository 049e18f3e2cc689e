"""Stand-in for ``tensorrt_llm.models`` (0.16.0): one model class, found through ``AutoModelForCausalLM``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorrt_llm.mapping import Mapping
from tensorrt_llm.models.modeling_utils import PretrainedModel, QuantConfig, pretrained_config

MODEL_MAP: dict[str, type[LLaMAForCausalLM]] = {}


class LLaMAForCausalLM(PretrainedModel):
    @classmethod
    def from_hugging_face(
        cls,
        hf_model_or_dir: str | os.PathLike[str],
        dtype: str = "auto",
        mapping: Mapping | None = None,
        quant_config: QuantConfig | None = None,
        **kwargs: Any,
    ) -> LLaMAForCausalLM:
        model_dir = Path(hf_model_or_dir)
        config = pretrained_config(model_dir, dtype, mapping or Mapping(), quant_config or QuantConfig())
        config.fields |= {key: kwargs[key] for key in ("use_parallel_embedding",) if key in kwargs}
        return cls(config, model_dir)

    @classmethod
    def quantize(
        cls,
        hf_model_dir: str,
        output_dir: str,
        dtype: str = "auto",
        mapping: Mapping | None = None,
        quant_config: QuantConfig | None = None,
        *,
        device: str = "cuda",
        calib_dataset: str = "cnn_dailymail",
        calib_batches: int = 512,
        calib_batch_size: int = 1,
        calib_max_seq_length: int = 512,
        random_seed: int = 1234,
        tokenizer_max_seq_length: int = 2048,
        **kwargs: Any,
    ) -> None:
        mapping = mapping or Mapping()
        for rank in range(mapping.world_size):
            each = Mapping(**{**mapping.to_dict(), "rank": rank})
            model = cls.from_hugging_face(hf_model_dir, dtype, each, quant_config)
            model.save_checkpoint(output_dir, save_config=rank == 0)


MODEL_MAP |= {"LlamaForCausalLM": LLaMAForCausalLM, "GPT2LMHeadModel": LLaMAForCausalLM}


class AutoModelForCausalLM:
    @staticmethod
    def get_trtllm_model_class(
        hf_model_or_dir: str | os.PathLike[str],
        trust_remote_code: bool = False,
        has_speculative_model: bool = False,
    ) -> type[LLaMAForCausalLM]:
        path = Path(hf_model_or_dir) / "config.json"
        assert path.exists(), "Please provide a Hugging Face model as the input to the LLM API."
        architecture = json.loads(path.read_text())["architectures"][0]
        if architecture not in MODEL_MAP:
            raise NotImplementedError(
                f"The given huggingface model architecture {architecture} is not supported in TRT-LLM yet"
            )
        return MODEL_MAP[architecture]

    @staticmethod
    def from_hugging_face(
        hf_model_or_dir: str | os.PathLike[str],
        dtype: str = "auto",
        mapping: Mapping | None = None,
        quant_config: QuantConfig | None = None,
        **kwargs: Any,
    ) -> LLaMAForCausalLM:
        model_class = AutoModelForCausalLM.get_trtllm_model_class(hf_model_or_dir)
        return model_class.from_hugging_face(hf_model_or_dir, dtype, mapping, quant_config, **kwargs)
