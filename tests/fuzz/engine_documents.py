"""What an engine brings: config.json, tokenizers' files. Read, or refused by a code."""

import tempfile
from pathlib import Path

from engine.directory import load
from engine.tensorrt_llm_config import read_compiled_config
from errors.coded_error import CodedError
from runner.chat.template import load_chat_template
from runner.generation.model import load_model_facts
from runner.settings.settings import load_settings
from tests.engine.samples import TENSORRT_CONFIG
from tests.fuzz.choices import Choices, as_json
from tests.fuzz.refusal import check_refusal
from tests.runner.paced_engine import make_tokenizer

_CONFIG_KEYS = (
    *("pretrained_config", "build_config", "builder_config", "mapping", "version", "quantization"),
    "model_type",
    *("world_size", "tp_size", "pp_size", "max_batch_size", "max_input_len", "max_seq_len", "plugin_config"),
    *("max_output_len", "dtype", "architectures", "vocab_size", "tensor_parallel", "max_position_embeddings"),
    *("pad_token_id", "eos_token_id", "max_num_tokens", "kv_cache_type", "quantization_config", "precision"),
)
_TOKENIZER_KEYS = (
    *("chat_template", "name", "template", "bos_token", "eos_token", "content", "eos_token_id", "pad_token"),
    *("added_tokens_decoder", "additional_special_tokens", "pad_token_id", "lstrip"),
)
_tokenizer = make_tokenizer().to_str().encode()


def compiled_config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_bytes(_config(Choices(data)))
        try:
            read_compiled_config(Path(folder)).prompt_limit(is_chunked=True)
        except CodedError as exc:
            check_refusal(exc, "E13")


def engine_directory(data: bytes) -> None:
    choices = Choices(data)
    files = {
        "config.json": _config(choices),
        "tokenizer.json": choices.of((_tokenizer, choices.damaged(_tokenizer), as_json(choices.value()))),
        choices.of(("model.safetensors", "rank0.engine")): b"x",
    }
    for name in choices.some(("tokenizer_config.json", "special_tokens_map.json", "chat_template.json"), 3):
        files[name] = choices.damaged(as_json(choices.object(_TOKENIZER_KEYS)))
    if choices.flag():
        files["generation_config.json"] = as_json(choices.value((5, [1, 2]), _CONFIG_KEYS))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        try:
            load_model_facts(load(Path(folder)), load_settings({"ENGINE_DIR": folder}))
        except CodedError as exc:
            check_refusal(exc, "E")
        try:
            load_chat_template(Path(folder), None)
        except CodedError as exc:
            check_refusal(exc, "E17")


def _config(choices: Choices) -> bytes:
    numbers = (1, 2, 8, 2048, "llama", ["x"], {"tp_size": 2})
    plain = choices.object(_CONFIG_KEYS, numbers)
    compiled = {
        "version": "0.16.0",
        "pretrained_config": {"mapping": choices.object(_CONFIG_KEYS, numbers), "vocab_size": 10, **plain},
        "build_config": {"max_seq_len": 8, "max_batch_size": 1, **choices.object(_CONFIG_KEYS, numbers)},
    }
    model = {"model_type": "llama", "max_position_embeddings": 64, **plain}
    documents = (as_json(compiled), as_json(model), as_json(plain), TENSORRT_CONFIG, as_json(choices.value()))
    return choices.damaged(choices.of(documents))
