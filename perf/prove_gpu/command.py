"""Prove on a GPU that every stream is exact, and measure what the stack takes of the engine's speed.

    python -m perf prove-gpu --engine-python VLLM_PYTHON --work FOLDER

Makes a model of a real shape with random weights, whose every token is known in advance (known_model.py), and
builds it into a vLLM engine.tar. Phases:

  preflight     an engine for another GPU is refused
  starts        seconds to READY, without and with the engine's cache
  speed         the engine in its own process, our slot by Triton, Cog's JSON and events, our and vLLM's
                OpenAI-compatible server: all resident, measured in turn with the same client
  cancel        clients that disconnect: the engine's counters show what is freed
  answers       sampling, log probabilities, LoRA adapters
  quantized     weights in 8 bits, made at load and packed so
  transformers  that engine on the same model

Exit status 0 if all was as it should be.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.machine.root import SOURCE_ROOT
from perf.options import Options
from perf.prove_gpu.answers import run_answers, run_quantized
from perf.prove_gpu.endings import run_cancel, run_preflight
from perf.prove_gpu.known_load import write_workload
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.speed import run_speed
from perf.prove_gpu.starts import run_starts
from perf.prove_gpu.transformers_engine import run_transformers

TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model"
PHASES: dict[str, Callable[[Proof], None]] = {
    "preflight": run_preflight,
    "starts": run_starts,
    "speed": run_speed,
    "cancel": run_cancel,
    "answers": run_answers,
    "quantized": run_quantized,
    "transformers": run_transformers,
}


def make_engine(proof: Proof) -> None:
    options = proof.options
    proof.make_model(proof.model, "--shape", options.shape)
    if not proof.workload.exists():
        lengths = (64, options.tokens)
        write_workload(proof.workload, proof.model, streams=max(options.streams), lengths=lengths)
    config = {"engine": "vllm", "model_path": proof.model.name, "vllm": proof.arguments}
    proof.build(proof.tar, config)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Options("prove-gpu", __doc__)
    parser.add_argument("--engine-python", required=True, help="the Python of an environment with vLLM")
    parser.add_argument("--transformers-python", help="the Python of a transformers environment")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a folder with tokenizer.json")
    parser.add_argument("--work", type=Path, required=True, help="a folder for models, engines and logs")
    parser.add_argument("--shape", default="1b", help="1b, 8b, small or tiny")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256, 512])
    parser.add_argument("--tokens", type=int, default=512, help="output tokens a stream")
    parser.add_argument(
        "--gap-ms",
        type=float,
        default=20.0,
        help="the smallest number of streams above 1 is measured once more, one begun every so often",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is measured")
    parser.add_argument("--peers", nargs="*", choices=("openai",), default=["openai"])
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs")
    parser.add_argument("--attention-backend", help="vLLM's name of one; else its own choice")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=JSON", help="another of vLLM's engine"
    )
    parser.add_argument("--phases", nargs="*", choices=PHASES, default=list(PHASES))
    parser.add_argument("--result", type=Path, default=Path("prove_gpu.json"), help="where the figures go")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    proof = Proof(parse(arguments))
    proof.work.mkdir(parents=True, exist_ok=True)
    make_engine(proof)
    for name, run in PHASES.items():
        if name in proof.options.phases:
            proof.say(f"== {name}")
            try:
                run(proof)
            # A phase that fails is a finding; the others run all the same.
            except Exception as exc:  # noqa: BLE001
                proof.findings.append(f"{name}: {type(exc).__name__}: {exc}")
                proof.say(f"FAILED {name}: {type(exc).__name__}: {exc}")
            proof.save()
    for finding in proof.findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if proof.findings else "proof: complete", flush=True)
    return bool(proof.findings)
