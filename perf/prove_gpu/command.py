"""Prove on a GPU that every stream is exact, and measure what the stack takes of the engine's speed.

    python -m perf prove-gpu --engine-python VLLM_PYTHON --work FOLDER

Makes a model of a real shape with random weights, whose every token is known in advance (known_model.py), and
builds it into a vLLM engine.tar. Phases:

  starts        seconds to READY, without and with the engine's cache
  speed         the engine in its own process, our slot by Triton, Cog's JSON and events, our and vLLM's
                OpenAI-compatible server: all resident, measured in turn with the same client
  cancel        clients that disconnect: the engine's counters show what is freed

Exit status 0 if all was as it should be.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perf.options import Options
from perf.prove_gpu.cancel import run_cancel
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack
from perf.prove_gpu.speed import run_speed


def run_starts(proof: Proof) -> None:
    """How long from the runner's start to READY: without the engine's cache, and twice with it."""
    shutil.rmtree(proof.engine_cache, ignore_errors=True)
    proof.engine_dir()  # Unpacked before: that time is not the engine's.
    for name in ("first", "second", "third"):
        with stack(proof, f"start-{name}") as started:
            proof.facts[f"{name}_start_s"] = started.start_s
            proof.say(f"{name} start: READY after {started.start_s:.1f} s")
    size_bytes = sum(path.stat().st_size for path in proof.engine_cache.rglob("*") if path.is_file())
    proof.facts["engine_cache_bytes"] = size_bytes
    proof.say(f"the engine's cache: {size_bytes / 1e6:.0f} MB")


PHASES: dict[str, Callable[[Proof], None]] = {
    "starts": run_starts,
    "speed": run_speed,
    "cancel": run_cancel,
}


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Options("prove-gpu", __doc__)
    parser.add_argument("--engine-python", required=True, help="the Python of an environment with vLLM")
    parser.add_argument("--work", type=Path, required=True, help="a folder for models, engines and logs")
    parser.add_argument("--shape", default="1b", choices=("1b", "8b", "tiny"))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256, 512])
    parser.add_argument("--tokens", type=int, default=512, help="output tokens a stream")
    gap_help = "the smallest number of streams above 1 is measured once more, one begun every so often"
    parser.add_argument("--gap-ms", type=float, default=20.0, help=gap_help)
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is measured")
    argument_help = "another of vLLM's engine, such as tensor_parallel_size=2"
    parser.add_argument(
        "--argument", type=_argument, action="append", default=[], metavar="NAME=JSON", help=argument_help
    )
    parser.add_argument("--phases", nargs="*", choices=PHASES, default=list(PHASES))
    parser.add_argument("--result", type=Path, default=Path("prove_gpu.json"), help="where the figures go")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    proof = Proof(parse(arguments))
    proof.make_engine()
    for name in proof.options.phases:
        proof.say(f"== {name}")
        try:
            PHASES[name](proof)
        # A phase that fails is a finding; the others run all the same.
        except Exception as exc:  # noqa: BLE001
            proof.expect(f"{name}: {type(exc).__name__}: {exc}", False)
        proof.save()
    for finding in proof.findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if proof.findings else "proof: complete", flush=True)
    return bool(proof.findings)
