"""Run in the engine environment: quantize a model as TensorRT-LLM 0.16.0's example quantize.py does."""

import multiprocessing

import flag_parser  # type: ignore[import-not-found]  # beside this program


def main() -> None:
    args = vars(flag_parser.make_parser("quantize.py").parse_args())
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
