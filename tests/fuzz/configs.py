"""Build configs of strangers: a plan, or one coded sentence that does not tell the token."""

from __future__ import annotations

import json

from builder.config.config import BuildConfig
from builder.config.file import parse_config
from builder.kinds import all_steps, engine_plan
from cli.migrate import config_text
from errors.coded_error import CodedError
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal

_KEYS = (
    *BuildConfig.model_fields,
    *("script", "executable", "output_dir", "args", "fit_lengths", "hf_token", "model_name", "merge"),
    *("tokens_per_second", "sm", "gpus", "max_output_len", "use_gpt_attention_plugin", "gemm_plugin"),
    *("world_size", "tp_size", "quant_ckpt_path", "model_dir", "tensor_parallel_size", "parallel_build"),
)
_WORDS = (
    *("tensorrt_llm", "vllm", "transformers", "paced", "acme/tiny", "llama", "gpt", "float16", "int8", "."),
    *("convert_checkpoint.py", "hf_llama_convert.py", "build.py", "trtllm-build", "python", "out", "enable"),
    *("safetensors", "http://h/m.tar", "models/tiny", "your_token_here", "quantize.py", None, 8, 2048, True),
)
_YAML = (
    *("!!python/object/apply:os.system [echo]", "&a [*a]", "*x", "&b {<<: *b}", "2001-01-01"),
    "!!binary aGk=",
    *("!!set {a, b}", "!!omap [a: 1]", "!!timestamp x", "!!bool x", "!!int 1_000:99", "0b2", "- a", "---"),
    "=",
    *("? [a, b]\n: c", "%YAML 9.9", "|\n text", "? {x: 1}", "!!float .", "1:2:3:4.5", "!!int ''", "!!null x"),
    *("paced", "{tokens_per_second: .nan}", "{tokens_per_second: 5}", "acme/tiny", "1", "5", "!!binary é"),
)


def build_config(data: bytes) -> None:
    choices = Choices(data)
    text = choices.damaged((_document, _lines, lambda _: choices.rest())[choices.below(3)](choices))
    try:
        file = parse_config(text, shown="config.yaml", folder=None)
        printed = config_text(file.config, file.notes)
        steps = [line for line, _ in all_steps(engine_plan(file.config))]
    except CodedError as exc:
        check_refusal(exc, "E12")
        return
    assert steps
    again = parse_config(printed.encode(), shown="again.yaml", folder=None)
    assert again.config.model_dump(exclude={"version"}) == file.config.model_dump(exclude={"version"})


def _document(choices: Choices) -> bytes:
    keys = choices.object(_KEYS, _WORDS)
    if choices.flag():
        keys["engine"] = choices.of(("tensorrt_llm", "vllm", "transformers", "paced"))
        keys["model_id"] = "acme/tiny"
    for step in choices.some(("convert_to_ft", "quantize", "build"), 3):
        keys[step] = {
            "output_dir": "out",
            "script": choices.of(_WORDS),
            "args": choices.object(_KEYS, _WORDS),
            **choices.object(("executable", "script", "args", "output_dir"), _WORDS),
        }
    return json.dumps(keys).encode()


def _lines(choices: Choices) -> bytes:
    pairs = [
        (choices.of((*_KEYS, *_YAML)), choices.of((*_YAML, *_YAML, "x"))) for _ in range(choices.below(6))
    ]
    return "\n".join(f"{key}: {value}" for key, value in pairs).encode()
