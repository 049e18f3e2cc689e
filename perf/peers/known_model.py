"""Make a model of a real shape with random weights, whose every token is known in advance.

    ENGINE_PYTHON -m perf.peers.known_model FOLDER 1b

The network is as costly as a trained one: all its weights are random numbers. But embeddings are large beside
what the layers add, and row ``next(t)`` of the last layer is the embedding of ``t``: so after token ``t``
comes ``next(t)``, by a margin that no rounding overcomes. A lost, repeated or mixed-up token is found.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.machine.root import SOURCE_ROOT

SHAPES = {
    # hidden, feed-forward, layers, heads, key heads
    "1b": (2048, 8192, 16, 32, 8),
    "8b": (4096, 14336, 32, 32, 8),
    "tiny": (64, 128, 2, 2, 2),
}
_TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model"


def main() -> None:
    folder, shape = Path(sys.argv[1]), sys.argv[2]
    hidden, inner, layers, heads, key_heads = SHAPES[shape]
    following = successors(_TOKENIZER / "tokenizer.json")
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
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    foretell(model, following)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(_TOKENIZER / name, folder)
    (folder / "following.json").write_text(json.dumps(following))
    count = sum(each.numel() for each in model.parameters()) / 1e9
    print(f"{folder}: {count:.3f} B parameters, bfloat16", flush=True)


def foretell(model: LlamaForCausalLM, following: list[int]) -> None:
    """Have the model say ``following[t]`` after each token ``t``."""
    embeddings, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embeddings.normal_(0, 1.0)
    head.zero_()
    said = [token for token, after in enumerate(following) if after != token]
    rows = torch.tensor([following[token] for token in said], device=head.device)
    head[rows] = embeddings[torch.tensor(said, device=head.device)]


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
