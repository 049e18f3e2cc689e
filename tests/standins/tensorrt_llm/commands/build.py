"""Stand-in for ``trtllm-build`` (0.16.0): takes the flags of the flag data, writes an engine of the real
layout.

There is a GPU if nvidia-smi tells so. A rank's file holds as many bytes as the rank's weights. Tests make it
misbehave by the environment: STANDIN_BUILD=fail | die | hang | lose-rank | oom.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tensorrt_llm

REPOSITORY = Path(__file__).resolve().parents[4]


def flag_table() -> dict[str, Any]:
    import yaml

    path = REPOSITORY / "builder" / "trtllm" / "flags" / f"{tensorrt_llm.__version__}.yaml"
    table: dict[str, Any] = yaml.safe_load(path.read_text())["programs"]["trtllm-build"]
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, flag in flag_table().items():
        names = [f"--{name}", *([f"--{flag['alias']}"] if "alias" in flag else [])]
        kind = flag["type"]
        if kind == "switch":
            parser.add_argument(*names, action="store_true")
        else:
            types = {"int": int, "float": float}
            options: dict[str, Any] = {"type": types.get(kind, str) if isinstance(kind, str) else str}
            if isinstance(kind, list):
                options["choices"] = [str(each) for each in kind]
            if kind == "toggle":
                options["choices"] = ["enable", "disable"]
            if kind == "list":
                options["nargs"] = "+"
            parser.add_argument(*names, dest=name, default=flag.get("default"), **options)
    return parser.parse_args()


def count_gpus() -> int:
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(answer.splitlines())


def misbehave(how: str | None) -> None:
    if how == "fail":
        print("[TRT-LLM] [E] Engine building failed, please check error log.")
        raise AssertionError("Engine building failed, please check error log.")
    if how == "die":
        print("[TRT-LLM] [I] Building TensorRT engine")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "oom":
        print("[TRT] [E] Requested amount of GPU memory (34359738368 bytes) could not be allocated.")
        sys.exit(1)
    if how == "hang":
        # As a pool of workers does: a process that is not this one's end.
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"[TRT-LLM] [I] hanging, worker {worker.pid}", flush=True)
        time.sleep(600)


def build_config(args: argparse.Namespace, pretrained: dict[str, Any]) -> dict[str, Any]:
    names = (
        "max_input_len", "max_batch_size", "max_beam_width", "max_num_tokens", "opt_num_tokens",
        "max_draft_len", "max_prompt_embedding_table_size", "gather_context_logits",
        "gather_generation_logits", "weight_sparsity", "weight_streaming", "profiling_verbosity",
        "max_encoder_input_len", "input_timing_cache", "output_timing_cache", "monitor_memory",
        "enable_debug_output",
    )  # fmt: skip
    config = {name: getattr(args, name) for name in names}
    config["max_seq_len"] = args.max_seq_len or pretrained["max_position_embeddings"]
    config["max_input_len"] = min(config["max_input_len"], config["max_seq_len"])
    config["kv_cache_type"] = args.kv_cache_type.upper()
    plugins = {name: value for name, value in vars(args).items() if name.endswith("_plugin")}
    switches = {
        name: getattr(args, name) == "enable"
        for name in ("context_fmha", "remove_input_padding", "use_paged_context_fmha", "multiple_profiles")
    }
    config["plugin_config"] = {**plugins, **switches, "tokens_per_block": args.tokens_per_block}
    return config


def main() -> None:
    args = parse_arguments()
    print(f"[TensorRT-LLM] TensorRT-LLM version: {tensorrt_llm.__version__}", flush=True)
    if count_gpus() == 0:
        raise ValueError("max_workers must be greater than 0")
    misbehave(os.environ.get("STANDIN_BUILD"))
    checkpoint = Path(args.checkpoint_dir)
    pretrained = json.loads((checkpoint / "config.json").read_text())
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    mapping = pretrained["mapping"]
    for rank in range(mapping["world_size"]):
        tp, cp = mapping["tp_size"], mapping["cp_size"]
        shared = rank % tp + rank // (tp * cp) * tp
        weights = (checkpoint / f"rank{shared}.safetensors").read_bytes()
        if os.environ.get("STANDIN_BUILD") != "lose-rank" or rank == 0:
            (output / f"rank{rank}.engine").write_bytes(b"ptrt" + weights)
        print(f"[TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:0{rank}", flush=True)
    config = {
        "version": tensorrt_llm.__version__,
        "pretrained_config": pretrained,
        "build_config": build_config(args, pretrained),
    }
    (output / "config.json").write_text(json.dumps(config, indent=4))
    Path(args.output_timing_cache).write_bytes(b"timings")


if __name__ == "__main__":
    main()
