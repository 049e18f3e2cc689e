"""Run in the engine environment: a Hugging Face model becomes a TensorRT-LLM checkpoint, whatever its
architecture.

Takes the flags of the convert_checkpoint.py scripts in TensorRT-LLM's examples and does by its library
(0.16.0) what they do: a file for each rank and one config.json in ``--output_dir``. What needs a script's
own code (NeMo's and Meta's formats) is refused when the build is planned. Imports nothing of this project.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_WEIGHT_ONLY = {
    "int8": "W8A16",
    "int4": "W4A16",
    "int8_gptq": "W8A16_GPTQ",
    "int4_gptq": "W4A16_GPTQ",
    "int4_awq": "W4A16_AWQ",
    "w8a8": "W8A8_SQ_PER_CHANNEL",
    "w4a8_awq": "W4A8_AWQ",
}
_FP8_CLAMP = 1200.0
"""The bound of activations in FP8 by rows, where the model does not tell one."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model_dir", "--model-dir", "--ckpt_dir", required=True)
    parser.add_argument("--output_dir", "--output-model-dir", required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--logits_dtype", default="float32")
    parser.add_argument("--tp_size", "--world-size", type=int, default=1)
    for name in ("pp_size", "cp_size", "workers"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("moe_tp_size", "moe_ep_size"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    _add_quantization(parser)
    for name in (
        "load_by_shard",
        "load_model_on_cpu",
        "use_parallel_embedding",
        "remove_duplicated_kv_heads",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--embedding_sharding_dim", type=int, default=0)
    parser.add_argument("--log_level", default="info")
    # What the library finds out by itself.
    for name in (
        "gpt_variant",
        "model_version",
        "chatglm_version",
        "ckpt-type",
        "ckpt_type",
        "checkpoint_type",
    ):
        parser.add_argument(f"--{name}")
    for name in ("tokenizer_dir", "dataset_cache_dir"):
        parser.add_argument(f"--{name}")
    return parser


def _add_quantization(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--use_weight_only", action="store_true")
    parser.add_argument("--weight_only_precision", nargs="?", const="int8", default="int8")
    parser.add_argument("--use-weight-only-with-precision")
    parser.add_argument("--disable_weight_only_quant_plugin", action="store_true")
    parser.add_argument("--smoothquant", "--use_smooth_quant_plugin", type=float)
    for name in ("per_channel", "per_token", "per_group", "use_fp8", "use_fp8_rowwise", "fp8_kv_cache"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--int8_kv_cache", "--calibrate_kv_cache", action="store_true")
    parser.add_argument("--enable_fp8", dest="use_fp8", action="store_true")
    parser.add_argument("--use_meta_fp8_rowwise_recipe", action="store_true")
    parser.add_argument("--quant_ckpt_path")
    parser.add_argument("--group_size", type=int, default=128)
    parser.add_argument("--calib_dataset", default="ccdv/cnn_dailymail")
    parser.add_argument("--calib_size", type=int, default=512)
    parser.add_argument("--calib_max_seq_length", type=int, default=512)


def quantization(args: argparse.Namespace, model_config: dict[str, Any]) -> dict[str, Any]:
    """The fields of QuantConfig that ``args`` ask for; a model in Meta's FP8 says so itself."""
    fields: dict[str, Any] = {"quant_algo": None}
    precision = args.use_weight_only_with_precision or (args.use_weight_only and args.weight_only_precision)
    if precision:
        fields["quant_algo"] = _WEIGHT_ONLY[precision]
        if precision.endswith(("gptq", "awq")):
            gptq = precision.endswith("gptq")
            fields |= {"group_size": args.group_size, "has_zero_point": gptq, "pre_quant_scale": not gptq}
    elif args.use_fp8:
        fields["quant_algo"] = "FP8"
    elif args.smoothquant is not None:
        channel = "PER_CHANNEL" if args.per_channel else "PER_TENSOR"
        token = "PER_TOKEN_" if args.per_token else "" if not args.per_channel else "PER_TENSOR_"
        fields |= {"quant_algo": f"W8A8_SQ_{channel}_{token}PLUGIN", "smoothquant_val": args.smoothquant}
    elif args.use_fp8_rowwise:
        fields |= {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "clamp_val": [-_FP8_CLAMP, _FP8_CLAMP]}
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
    """What is passed on to the model's class: only what was asked for, since not every class knows all."""
    given = {
        "use_parallel_embedding": args.use_parallel_embedding,
        "embedding_sharding_dim": args.embedding_sharding_dim,
        "disable_weight_only_quant_plugin": args.disable_weight_only_quant_plugin,
        "remove_duplicated_kv_heads": args.remove_duplicated_kv_heads,
        "quant_ckpt_path": args.quant_ckpt_path,
        "load_model_on_cpu": args.load_model_on_cpu,
        "load_by_shard": args.load_by_shard,
    }
    return {name: value for name, value in given.items() if value}


def mapping(args: argparse.Namespace, rank: int) -> Any:
    """Of one file of the checkpoint; ranks of context parallelism share files, so it knows none of them."""
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
    """Quantize with activations seen on samples; the model's class writes all ranks itself."""
    from tensorrt_llm.models import AutoModelForCausalLM

    model_class = AutoModelForCausalLM.get_trtllm_model_class(args.model_dir)
    model_class.quantize(
        args.model_dir,
        args.output_dir,
        dtype=args.dtype,
        mapping=mapping(args, 0),
        quant_config=quant_config,
        device="cpu" if args.load_model_on_cpu else "cuda",
        calib_dataset=args.calib_dataset,
        calib_batches=args.calib_size,
        calib_max_seq_length=args.calib_max_seq_length,
        **options(args),
    )


def in_turn(workers: int, count: int, work: Callable[[int], None]) -> None:
    """``work`` on every rank, ``workers`` at once; the first failure is raised."""
    with ThreadPoolExecutor(workers) as pool:
        for result in [pool.submit(work, rank) for rank in range(count)]:
            result.result()


def main() -> None:
    args = make_parser().parse_args()
    from tensorrt_llm.models.modeling_utils import QuantConfig  # type: ignore[import-not-found, unused-ignore]

    model_config = json.loads((Path(args.model_dir) / "config.json").read_text())
    quant_config = QuantConfig(**quantization(args, model_config))
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    if args.smoothquant is not None or args.int8_kv_cache:
        calibrate(args, quant_config)
    else:
        ranks = args.tp_size * args.pp_size
        in_turn(args.workers, ranks, lambda rank: convert_rank(args, quant_config, rank))


if __name__ == "__main__":
    main()
