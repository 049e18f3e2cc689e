"""Makes a model of a real shape with random weights, whose every token is known in advance.

    ENGINE_PYTHON -m perf.prove_gpu.known_model FOLDER --shape 1b --tokenizer FOLDER

The network is as costly as a trained one: all its weights are random numbers. But embeddings are large beside
what the layers add, and row ``next(t)`` of the last layer is the embedding of ``t``: so after token ``t``
comes ``next(t)``, by a margin that no rounding overcomes. A lost, repeated or mixed-up token is found.
That margin also hides sampling and adapters: for these, ``--flat`` leaves all weights random.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    # hidden, feed-forward, layers, heads, key heads
    "1b": (2048, 8192, 16, 32, 8),
    "8b": (4096, 14336, 32, 32, 8),
    "small": (1024, 4096, 4, 16, 4),
    "tiny": (64, 128, 2, 2, 2),
}
_ADAPTER_RANK = 8
_ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
_FP8_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_FP8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_FP8, "strategy": "token", "dynamic": True},
        }
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with tokenizer.json")
    parser.add_argument("--flat", action="store_true", help="all random: no token is known in advance")
    parser.add_argument("--adapters", action="store_true", help="LoRA adapters as well, below adapters/")
    parser.add_argument("--fp8", type=Path, metavar="FOLDER", help="a copy with weights in 8 bits as well")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    hidden, inner, layers, heads, key_heads = SHAPES[options.shape]
    following = successors(options.tokenizer / "tokenizer.json")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        vocab_size=len(following),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        # What the layers add grows with the width: it must stay small beside the embeddings.
        initializer_range=0.02 * min(1.0, 2048 / hidden),
        dtype="bfloat16",
    )
    with torch.device(options.device):
        model = LlamaForCausalLM(config)
    if not options.flat:
        foretell(model, following)
    model.save_pretrained(options.folder)
    if options.adapters:
        for name, size in (("loud", 1.0), ("silent", 0.0)):
            write_adapter(options.folder / "adapters" / name, model, size)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(options.tokenizer / name, options.folder)
    (options.folder / "following.json").write_text(json.dumps(following))
    if options.fp8:
        write_fp8(options.folder, options.fp8)
    count = sum(each.numel() for each in model.parameters()) / 1e9
    print(f"{options.folder}: {count:.3f} B parameters, bfloat16", flush=True)


def foretell(model: LlamaForCausalLM, following: list[int]) -> None:
    """Have the model say ``following[t]`` after each token ``t``."""
    embeddings, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embeddings.normal_(0, 1.0)
    head.zero_()
    said = [token for token, after in enumerate(following) if after != token]
    rows = torch.tensor([following[token] for token in said], device=head.device)
    head[rows] = embeddings[torch.tensor(said, device=head.device)]


def write_adapter(folder: Path, model: LlamaForCausalLM, size: float) -> None:
    """A random LoRA adapter as PEFT writes it; of size 0 it changes nothing."""
    weights = {}
    for name, module in model.named_modules():
        if name.endswith(_ADAPTED):
            outputs, inputs = module.weight.shape
            down = torch.randn(_ADAPTER_RANK, inputs) / inputs**0.5
            up = size * torch.randn(outputs, _ADAPTER_RANK)
            weights[f"base_model.model.{name}.lora_A.weight"] = down
            weights[f"base_model.model.{name}.lora_B.weight"] = up
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _ADAPTER_RANK,
        "lora_alpha": _ADAPTER_RANK,
        "target_modules": [name.rpartition(".")[2] for name in _ADAPTED],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def write_fp8(source: Path, target: Path) -> None:
    """The same model with 8-bit weights and a scale for each row, as compressed-tensors packs it."""
    target.mkdir(parents=True)
    packed = {}
    largest = torch.finfo(torch.float8_e4m3fn).max
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            scale = weight.float().abs().amax(1, keepdim=True) / largest
            packed[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
            packed[f"{name}_scale"] = scale
        else:
            packed[name] = weight
    save_file(packed, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": _FP8_CONFIG}))
    for name in ("tokenizer.json", "tokenizer_config.json", "following.json"):
        shutil.copy(source / name, target)


def successors(tokenizer: Path) -> list[int]:
    """The token that follows each token, by id: a cycle of all but the special ones, which follow themselves.

    Special tokens are never said, so that no stream ends early.
    """
    described = json.loads(tokenizer.read_text())
    special = {token["id"] for token in described["added_tokens"]}
    count = max([*described["model"]["vocab"].values(), *special]) + 1
    generator = torch.Generator().manual_seed(7)
    plain = [token for token in range(count) if token not in special]
    cycle = [plain[index] for index in torch.randperm(len(plain), generator=generator).tolist()]
    following = list(range(count))
    for token, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        following[token] = after
    return following


if __name__ == "__main__":
    main()
