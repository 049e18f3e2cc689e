"""The transformers engine on the same model: its continuous batching beside the library's static batch."""

from __future__ import annotations

from typing import Any

import servers
from client import Clients
from proof import Proof
from slot_stream import ask

_ROUNDS = 2


def run_transformers(proof: Proof) -> None:
    options = proof.options
    python = options.transformers_python or options.engine_python
    tar = proof.work / "transformers.tar"
    config = {"engine": "transformers", "model_path": proof.model.name, "dtype": "bfloat16"}
    proof.build(tar, config)
    streams = min(256, max(options.streams))
    told = proof.run_program(
        *("static_batch.py", proof.model, proof.workload, "--streams", streams, "--tokens", options.tokens),
        python=python,
    )
    proof.row(told)
    settings = {"COG_WEIGHTS": str(tar), "COG_TRITON_ENGINE_PYTHON": python}
    with servers.stack(proof, "transformers", settings) as stack, Clients() as clients:
        proof.facts["transformers_start_s"] = stack.seconds
        proof.say(f"transformers engine: READY after {stack.seconds:.1f} s")
        clients.measure("slot", stack.triton_url, proof.workload, streams, 64)
        measured: list[dict[str, Any]] = [
            clients.measure("slot", stack.triton_url, proof.workload, count, options.tokens)
            for count in (1, *_ROUNDS * [streams])
        ]
        for each in measured:
            proof.row({**each, "target": "transformers, slot"})
        sampled = {"input_ids": [5, 6, 7], "request_output_len": 32, "runtime_top_k": 50, "random_seed": 3}
        twice = [ask(stack.triton_url, sampled).tokens for _ in range(2)]
        proof.expect("transformers: a seed gives the same tokens again", twice[0] == twice[1] != [])
    ratio = measured[-1]["tokens_per_second"] / told["tokens_per_second"]
    proof.facts["transformers_of_static_batch"] = ratio
    proof.say(f"transformers' continuous batching: {ratio:.2f} of its static batch")
