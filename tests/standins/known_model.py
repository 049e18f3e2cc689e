"""Make a model of a real shape with random weights, whose every token is known in advance.

    ENGINE_PYTHON -m tests.standins.known_model FOLDER 1b

The network is as costly as a trained one: all its weights are random numbers. But embeddings are large beside
what the layers add, and the last layer's row of token ``t + 1`` is the embedding of ``t``: so after each
token comes the next one, by a margin that no rounding overcomes. A lost or mixed-up token is found.

With ``dummy`` it has no weights: vLLM makes some itself with ``load_format: dummy``.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, PretrainedConfig

from engine.machine.root import SOURCE_ROOT

SHAPES = {
    # hidden, feed-forward, layers, heads, key heads
    "1b": (2048, 8192, 16, 32, 8),
    "8b": (4096, 14336, 32, 32, 8),
    "tiny": (64, 128, 2, 2, 2),
    "moe": (1024, 2048, 8, 8, 8),
}
_TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model"


def main() -> None:
    folder, shape = Path(sys.argv[1]), sys.argv[2]
    hidden, inner, layers, heads, key_heads = SHAPES[shape]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = (MixtralConfig if shape == "moe" else LlamaConfig)(
        vocab_size=Tokenizer.from_file(str(_TOKENIZER / "tokenizer.json")).get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=16384,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        # What the layers add grows with the width: it must stay small beside the embeddings.
        initializer_range=0.02 * min(1.0, 2048 / hidden),
        dtype="bfloat16",
    )
    if sys.argv[3:] == ["dummy"]:
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    else:
        _make_weights(config, folder)
    if sys.argv[3:] in (["gptq"], ["awq"]):
        quantize(folder, sys.argv[3])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(_TOKENIZER / name, folder)


def _make_weights(config: PretrainedConfig, folder: Path) -> None:
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config)
    embeddings = model.model.embed_tokens.weight.data.normal_(0, 1.0)
    model.lm_head.weight.data.copy_(embeddings.roll(1, 0))
    model.save_pretrained(folder)


def quantize(folder: Path, method: str) -> None:
    """Put random weights of 4 bits in place of the layers' own, in the form of ``gptq`` or ``awq``."""
    group, path = 128, folder / "model.safetensors"
    tensors = {name: tensor.half() for name, tensor in load_file(path).items()}
    for name in [each for each in tensors if each.endswith("_proj.weight")]:
        rows, columns = reversed(tensors.pop(name).shape)
        start, groups = name.removesuffix("weight"), rows // group
        packed = (rows // 8, columns) if method == "gptq" else (rows, columns // 8)
        # From -7 to 7: a mean other than 0 would add up over the layers and change the known tokens.
        values = torch.randint(1, 16, (8, *packed), dtype=torch.int64)
        bits = sum(each << 4 * place for place, each in enumerate(values))
        tensors[f"{start}qweight"] = torch.where(bits < 2**31, bits, bits - 2**32).int()
        tensors[f"{start}scales"] = torch.full((groups, columns), 0.004, dtype=torch.float16)
        zero = 0x77777777 if method == "gptq" else -0x77777778
        tensors[f"{start}qzeros"] = torch.full((groups, columns // 8), zero, dtype=torch.int32)
        if method == "gptq":
            tensors[f"{start}g_idx"] = torch.arange(rows, dtype=torch.int32) // group
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    own = {"desc_act": False, "sym": True} if method == "gptq" else {"zero_point": True, "version": "gemm"}
    form = {"quant_method": method, "bits": 4, "group_size": group, **own}
    text = json.dumps({**config, "dtype": "float16", "quantization_config": form}, indent=2)
    (folder / "config.json").write_text(text)


if __name__ == "__main__":
    main()
