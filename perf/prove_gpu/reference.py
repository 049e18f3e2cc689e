"""transformers' log probabilities, in float32, of tokens that another engine said.

    ENGINE_PYTHON -m perf.prove_gpu.reference MODEL SAID.json [--adapter FOLDER]

SAID.json: a list of [prompt ids, output ids]. Prints one JSON line: ``log_probs``, a list for each, and
``most_probable``, the share of tokens that are the most probable here, too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("said", type=Path)
    parser.add_argument("--adapter", type=Path)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    if options.adapter:
        merge(model, options.adapter)
    log_probs, hits, count = [], 0, 0
    for prompt, output in json.loads(options.said.read_text()):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        said = torch.tensor(output)
        log_probs.append(logits.log_softmax(-1).gather(1, said[:, None])[:, 0].tolist())
        hits += int((logits.argmax(-1) == said).sum())
        count += len(output)
    print(json.dumps({"log_probs": log_probs, "most_probable": hits / max(1, count)}))


def merge(model: torch.nn.Module, adapter: Path) -> None:
    """Add a LoRA adapter (PEFT's files) to the weights that it is for."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    weights = load_file(adapter / "adapter_model.safetensors")
    for key, down in weights.items():
        name, part, _ = key.rpartition(".lora_A.weight")
        if part:
            up = weights[f"{name}.lora_B.weight"]
            target = model.get_parameter(f"{name.removeprefix('base_model.model.')}.weight")
            target.data += scale * (up.float() @ down.float())


if __name__ == "__main__":
    main()
