"""The transformers engine on the same model: exact streams, and equal tokens for equal seeds."""

from __future__ import annotations

from perf.prove_gpu.client import Clients
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack
from perf.prove_gpu.slot_stream import generate


def run_transformers(proof: Proof) -> None:
    options = proof.options
    python = options.transformers_python or options.engine_python
    tar = proof.work / "transformers.tar"
    proof.build(tar, {"engine": "transformers", "model_path": proof.model.name, "dtype": "bfloat16"})
    settings = {"COG_WEIGHTS": str(tar), "COG_TRITON_ENGINE_PYTHON": python}
    with stack(proof, "transformers", settings) as started, Clients() as clients:
        proof.say(f"transformers engine: READY after {started.start_s:.1f} s")
        url, streams = started.triton_url, min(256, max(options.streams))
        clients.measure("slot", url, proof.workload, streams, 64)
        for count in (1, streams):
            measured = clients.measure("slot", url, proof.workload, count, options.tokens)
            proof.row({**measured, "target": "transformers, slot"})
        sampled = {"input_ids": [5, 6, 7], "request_output_len": 32, "runtime_top_k": 50, "random_seed": 3}
        twice = [generate(url, sampled).tokens for _ in range(2)]
        proof.expect("transformers: a seed gives the same tokens again", twice[0] == twice[1] != [])
