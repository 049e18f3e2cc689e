"""A tiny LLaVA: all that vLLM's processor of images needs, with weights that nothing reads."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

IMAGE, END, PAD = 256, 257, 258
"""Tokens after those of the bytes."""
IMAGE_TOKENS = 4
"""Number of tokens of each image: patches of 14 x 14 in 28 x 28 pixels."""
_SIDE, _PATCH = 28, 14
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
_LAYERS = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def make_image_model(folder: Path) -> Path:
    folder.mkdir()
    vocabulary = {each: at for at, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<image>", "</s>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    vision = {"image_size": _SIDE, "patch_size": _PATCH, "projection_dim": 64}
    text = {"num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": PAD + 1}
    documents = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "chat_template": TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "dtype": "bfloat16",
            "image_token_index": IMAGE,
            "text_config": {**_LAYERS, **text, "model_type": "llama", "eos_token_id": END},
            "vision_config": {**_LAYERS, **vision, "model_type": "clip_vision_model"},
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "crop_size": {"height": _SIDE, "width": _SIDE},
            "size": {"shortest_edge": _SIDE},
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": _PATCH,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    header = b'{"nothing":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    return folder
