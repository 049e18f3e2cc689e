"""Make a tiny random Llama model of real files, without torch: what a repository on the Hub holds."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN = 8
VOCABULARY = 300
TEXT = ["The whale swam past the old ship.", "Schöne Grüße, 你好, 🐋 and more whales."]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def tokenizer_json() -> bytes:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer.to_str().encode()


def tensors() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    random = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "mlp.gate_proj.weight": (16, HIDDEN),
        layer + "mlp.up_proj.weight": (16, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, 16),
    }
    shapes |= {layer + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def safetensors(named: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]) -> bytes:
    """Return the file format: the header's length in 8 bytes, the header as JSON, the tensors' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in named.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in named.values())


def files() -> dict[str, bytes]:
    """Return a whole repository, with things the builder must leave alone: code, a second set of weights."""
    weights = safetensors(tensors())
    return {
        "README.md": b"# tiny",
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": b'{"eos_token_id": 1}',
        "model.safetensors": weights,
        "onnx/model.onnx": b"onnx",
        "modeling_tiny.py": b"raise SystemExit('never run')",
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}',
        "pytorch_model.bin": b"pickled",
        "training_args.bin": b"pickled",
    }
