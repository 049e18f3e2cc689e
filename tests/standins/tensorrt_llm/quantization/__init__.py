"""Stand-in for ``tensorrt_llm.quantization`` (0.16.0): ``quantize_and_export``."""

from __future__ import annotations

from pathlib import Path

from tensorrt_llm.mapping import Mapping

_ALGORITHMS = {
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "fp8": "FP8",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
    "full_prec": None,
}


def quantize_and_export(
    *,
    model_dir: str,
    device: str,
    calib_dataset: str,
    dtype: str,
    qformat: str,
    kv_cache_dtype: str | None,
    calib_size: int,
    batch_size: int,
    calib_max_seq_length: int,
    awq_block_size: int,
    output_dir: str,
    tp_size: int,
    pp_size: int,
    cp_size: int,
    seed: int,
    tokenizer_max_seq_length: int,
    num_medusa_heads: int | None = None,
    num_medusa_layers: int | None = None,
    max_draft_len: int | None = None,
    medusa_hidden_act: str | None = None,
    medusa_model_dir: str | None = None,
    quant_medusa_head: bool | None = None,
    auto_quantize_bits: float | None = None,
) -> None:
    from tensorrt_llm.models import LLaMAForCausalLM
    from tensorrt_llm.models.modeling_utils import QuantConfig

    if "cnn_dailymail" not in calib_dataset and not Path(calib_dataset).is_dir():
        raise NotImplementedError(f"Unsupported dataset name or local repo directory: {calib_dataset}.")
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    quant = QuantConfig(
        quant_algo=_ALGORITHMS[qformat],
        kv_cache_quant_algo={None: None, "fp8": "FP8", "int8": "INT8"}[kv_cache_dtype],
        group_size=awq_block_size,
    )
    for rank in range(tp_size * pp_size):
        mapping = Mapping(world_size=tp_size * pp_size, rank=rank, tp_size=tp_size, pp_size=pp_size)
        model = LLaMAForCausalLM.from_hugging_face(model_dir, dtype, mapping, quant)
        model.save_checkpoint(output_dir, save_config=rank == 0)
