"""Make small models with random weights, and compute their expected answers with transformers.

    ENGINE_PYTHON -m tests.gpu.reference make FOLDER text|embedding|images
    ENGINE_PYTHON -m tests.gpu.reference vectors|log-probabilities FOLDER INPUTS

Weights are stored as bfloat16; transformers computes in float32. INPUTS is a JSON list of lists of token ids.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from engine.machine.root import SOURCE_ROOT
from tests.engine.pooling_files import write_pooling
from tests.runner.engines.vllm.image_model import make_image_model

_TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model"
_RANGE = 0.08
"""Standard deviation of the weights: what layers add is as large as the embeddings, so that each counts."""
_WIDTH = 512
_WIDER = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "initializer_range": _RANGE}


def make(folder: Path, kind: str) -> None:
    torch.manual_seed(0)
    if kind == "images":
        _make_image_model(folder)
    else:
        _make_text_model(folder)
    if kind == "embedding":
        write_pooling(folder, "mean_tokens", _WIDTH)


def _make_text_model(folder: Path) -> None:
    config = LlamaConfig(
        vocab_size=Tokenizer.from_file(str(_TOKENIZER / "tokenizer.json")).get_vocab_size(),
        hidden_size=_WIDTH,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        initializer_range=_RANGE,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(_TOKENIZER / name, folder)


def _make_image_model(folder: Path) -> None:
    make_image_model(folder)
    document = json.loads((folder / "config.json").read_text())
    for name in ("text_config", "vision_config"):
        document[name].update(_WIDER)
    model = LlavaForConditionalGeneration(LlavaConfig(**document)).bfloat16()
    # NOTE: vLLM reads the names of older releases of transformers.
    model.save_pretrained(folder)
    path, old, new = folder / "model.safetensors", "vision_tower.", "vision_tower.vision_model."
    tensors = {
        name if new in name else name.replace(old, new): tensor for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(document))


@torch.no_grad()
def vectors(folder: Path, inputs: list[list[int]]) -> list[list[float]]:
    """Return the mean of the last hidden states of each input, with length 1."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    means = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in inputs]
    return [(each / each.norm()).tolist() for each in means]


@torch.no_grad()
def log_probabilities(folder: Path, inputs: list[list[int]]) -> list[list[float]]:
    """Return those of the five likeliest tokens after each input."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits = [model(torch.tensor([ids])).logits[0, -1] for ids in inputs]
    return [each.log_softmax(-1).topk(5).values.tolist() for each in logits]


def main() -> None:
    action, folder, rest = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if action == "make":
        make(folder, rest)
    else:
        compute = {"vectors": vectors, "log-probabilities": log_probabilities}[action]
        print(json.dumps(compute(folder, json.loads(rest))))


if __name__ == "__main__":
    main()
