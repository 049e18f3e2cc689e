"""transformers' ``generate`` over one static batch: what its continuous batching is measured against.

TRANSFORMERS_PYTHON perf/prove_gpu/static_batch.py MODEL WORKLOAD.json --streams 256 --tokens 512
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    work = json.loads(options.workload.read_text())
    prompts = work["prompts"][: options.streams]
    width = min(map(len, prompts))
    ids = torch.tensor([prompt[-width:] for prompt in prompts], device="cuda")
    arguments = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "eos_token_id": -1,
        "pad_token_id": 0,
    }
    model.generate(ids, max_new_tokens=8, **arguments)
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    output = model.generate(ids, max_new_tokens=options.tokens, **arguments)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started_s
    exact = 0
    for row in output.tolist():
        token, expected = row[width - 1], []
        for _ in range(options.tokens):
            token = work["following"][token]
            expected.append(token)
        exact += row[width:] == expected
    result = {
        "target": "transformers, static batch",
        "streams": options.streams,
        "tokens": options.tokens,
        "tokens_per_second": output[:, width:].numel() / seconds,
        "exact": exact,
        "first_token_ms": None,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
