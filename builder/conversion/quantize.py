"""Run in the engine environment: quantize a Hugging Face model into a TensorRT-LLM checkpoint.

Takes the flags of examples/quantization/quantize.py and calls what that calls: the library's
quantize_and_export (0.16.0). Imports nothing of this project.
"""

from __future__ import annotations

import argparse
import multiprocessing


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    texts = {"device": "cuda", "calib_dataset": "cnn_dailymail", "dtype": "auto", "qformat": "full_prec"}
    for name, default in texts.items():
        parser.add_argument(f"--{name}", default=default)
    numbers = {
        "seed": 1234,
        "tokenizer_max_seq_length": 2048,
        "batch_size": 1,
        "calib_size": 512,
        "calib_max_seq_length": 512,
        "tp_size": 1,
        "pp_size": 1,
        "cp_size": 1,
        "awq_block_size": 128,
        "num_medusa_heads": 4,
        "num_medusa_layers": 1,
        "max_draft_len": 63,
        "calib_tp_size": 1,
        "calib_pp_size": 1,
    }
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--kv_cache_dtype")
    parser.add_argument("--medusa_hidden_act", default="silu")
    parser.add_argument("--medusa_model_dir")
    parser.add_argument("--quant_medusa_head", action="store_true")
    parser.add_argument("--autoq_format")
    parser.add_argument("--auto_quantize_bits", type=float)
    parser.add_argument("--decoder_type", help="of NeMo models alone")
    return parser


def main() -> None:
    args = vars(make_parser().parse_args())
    from tensorrt_llm.quantization import quantize_and_export  # type: ignore[import-not-found, unused-ignore]

    for unused in ("decoder_type", "calib_tp_size", "calib_pp_size"):
        del args[unused]
    autoq_format = args.pop("autoq_format")
    if args["auto_quantize_bits"] is not None and autoq_format:
        args["qformat"] = autoq_format
    print(f"quantizing to {args['qformat']}", flush=True)
    quantize_and_export(**args)


if __name__ == "__main__":
    # NOTE: the samples' loader starts processes; forked ones can't use CUDA.
    multiprocessing.set_start_method("spawn", force=True)
    main()
