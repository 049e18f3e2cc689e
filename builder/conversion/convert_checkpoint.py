"""Run in the engine environment: convert any Hugging Face model to a TensorRT-LLM checkpoint.

It takes the flags of the convert_checkpoint.py scripts in TensorRT-LLM's examples and does the same with the
library (0.16.0): a file for each rank and one config.json in ``--output_dir``. The plan refuses what needs a
script's own code (NeMo's and Meta's formats).
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flag_parser  # type: ignore[import-not-found]  # beside this program
import quant_algo  # type: ignore[import-not-found]

_FP8_CLAMP = 1200.0
"""Upper bound of activations in FP8 by rows, for models that do not state one."""
_CALIBRATION_DATASET = "ccdv/cnn_dailymail"
_OPTIONS = (
    *("use_parallel_embedding", "embedding_sharding_dim", "disable_weight_only_quant_plugin"),
    *("remove_duplicated_kv_heads", "quant_ckpt_path", "load_model_on_cpu", "load_by_shard"),
)
_SAME = {
    "model-dir": "model_dir",
    "ckpt_dir": "model_dir",
    "output-model-dir": "output_dir",
    "world-size": "tp_size",
    "use_smooth_quant_plugin": "smoothquant",
    "calibrate_kv_cache": "int8_kv_cache",
    "enable_fp8": "use_fp8",
}
"""Flags of some examples' scripts, by the name that most scripts have for them."""


def quantization(args: argparse.Namespace, model_config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of QuantConfig that ``args`` ask for; a model in Meta's FP8 has its own."""
    algorithm = quant_algo.quant_algo(lambda flag: getattr(args, flag.replace("-", "_"), None))
    fields: dict[str, Any] = {"quant_algo": algorithm}
    name = algorithm or ""
    if name.endswith(("GPTQ", "AWQ")):
        gptq = name.endswith("GPTQ")
        fields |= {"group_size": args.group_size, "has_zero_point": gptq, "pre_quant_scale": not gptq}
    elif name.endswith("_PLUGIN"):
        fields["smoothquant_val"] = args.smoothquant
    elif name == "FP8_PER_CHANNEL_PER_TOKEN":
        fields["clamp_val"] = [-_FP8_CLAMP, _FP8_CLAMP]
    described = model_config.get("quantization_config") or {}
    if described.get("quant_method") == "fbgemm_fp8":
        bound = described.get("activation_scale_ub", _FP8_CLAMP)
        fields |= {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "clamp_val": [-bound, bound]}
    if args.use_meta_fp8_rowwise_recipe:
        fields["use_meta_recipe"] = True
    if args.int8_kv_cache or args.fp8_kv_cache:
        fields["kv_cache_quant_algo"] = "INT8" if args.int8_kv_cache else "FP8"
    return fields


def options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the model's class gets: only what was asked for, since not every class knows all."""
    return {name: value for name in _OPTIONS if (value := getattr(args, name))}


def mapping(args: argparse.Namespace, rank: int) -> Any:
    """Return the mapping of one file. Ranks of context parallelism share files, so it knows none of them."""
    from tensorrt_llm.mapping import Mapping  # type: ignore[import-not-found, unused-ignore]

    return Mapping(
        world_size=args.tp_size * args.pp_size,
        rank=rank,
        tp_size=args.tp_size,
        pp_size=args.pp_size,
        moe_tp_size=args.moe_tp_size,
        moe_ep_size=args.moe_ep_size,
    )


def convert_rank(args: argparse.Namespace, quant_config: Any, rank: int) -> None:
    from tensorrt_llm.models import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    print(f"converting rank {rank} of {args.tp_size * args.pp_size}", flush=True)
    model = AutoModelForCausalLM.from_hugging_face(
        args.model_dir, args.dtype, mapping(args, rank), quant_config, **options(args)
    )
    if args.cp_size > 1:
        model.config.mapping.cp_size = args.cp_size
        model.config.mapping.world_size *= args.cp_size
    model.save_checkpoint(args.output_dir, save_config=rank == 0)
    model.release()


def calibrate(args: argparse.Namespace, quant_config: Any) -> None:
    """Quantize with activations of samples. The model's class writes all ranks itself."""
    from tensorrt_llm.models import AutoModelForCausalLM

    model_class = AutoModelForCausalLM.get_trtllm_model_class(args.model_dir)
    model_class.quantize(
        args.model_dir,
        args.output_dir,
        dtype=args.dtype,
        mapping=mapping(args, 0),
        quant_config=quant_config,
        device="cpu" if args.load_model_on_cpu else "cuda",
        calib_dataset=args.calib_dataset or _CALIBRATION_DATASET,
        calib_batches=args.calib_size,
        calib_max_seq_length=args.calib_max_seq_length,
        **options(args),
    )


def main() -> None:
    args = flag_parser.make_parser("convert_checkpoint.py", _SAME).parse_args()
    from tensorrt_llm.models.modeling_utils import QuantConfig  # type: ignore[import-not-found, unused-ignore]

    model_config = json.loads((Path(args.model_dir) / "config.json").read_text())
    quant_config = QuantConfig(**quantization(args, model_config))
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    if args.smoothquant is not None or args.int8_kv_cache:
        calibrate(args, quant_config)
    else:
        ranks = args.tp_size * args.pp_size
        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(lambda rank: convert_rank(args, quant_config, rank), range(ranks)))


if __name__ == "__main__":
    main()
