"""The examples are in today's form, without a word of old, and are planned from config.json alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.config.file import read_config
from builder.plan import plan_lines
from builder.trtllm.rules import check
from tests.builder.sizes.published import (
    GPT2,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    MISTRAL_7B,
    PUBLISHED,
)  # fmt: skip

FOLDER = Path(builder.__path__[0]) / "examples"
EXAMPLES = {f"{path.parent.name}/{path.stem}": path for path in FOLDER.rglob("*.yaml")}
LLAMA_2_13B = {
    **LLAMA_2_7B, "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40,
    "num_hidden_layers": 40, "num_key_value_heads": 40,
}  # fmt: skip
ASKED: dict[str, tuple[str | None, int, dict[str, Any]]] = {
    "gpt/config": (None, 1, {**GPT2, "n_embd": 2, "n_head": 2, "n_layer": 2}),
    "gpt/gpt-medium-build-config": (None, 1, {**GPT2, "n_embd": 1024, "n_head": 16, "n_layer": 24}),
    "gpt/starcoder": ("W8A8_SQ_PER_TENSOR_PLUGIN", 1, PUBLISHED["starcoder"][0]),
    "llama/llama-2-13b-chat-int8-2gpu": ("W8A16", 2, LLAMA_2_13B),
    "llama/llama-2-13b-chat-sq-1gpu": ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", 1, LLAMA_2_13B),
    "llama/llama-2-70b-4gpu": (None, 4, LLAMA_2_70B),
    "llama/llama-2-7b-chat-1gpu": (None, 1, LLAMA_2_7B),
    "llama/llama-2-7b-chat-int8-1gpu": ("W8A16", 1, LLAMA_2_7B),
    "llama/llama-3.1-8b-instruct-awq": ("W4A16_AWQ", 1, {**LLAMA_3_8B, "max_position_embeddings": 131072}),
    "llama/mistral-7b-instruct-v0.2": (None, 1, MISTRAL_7B),
}
"""Quantization, number of GPUs, and the model's config.json."""


def test_every_shape_has_its_example() -> None:
    assert {name for name in EXAMPLES if name.startswith(("gpt/", "llama/"))} == set(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_each_example_is_checked_and_planned_and_names_the_schema_for_editors(
    name: str, tmp_path: Path
) -> None:
    config = read_config(EXAMPLES[name]).config
    build, notes = check(config)
    *asked, model = ASKED[name]
    assert [build.quantization, build.world_size] == asked
    assert not build.fit_lengths
    assert notes == []
    model_config = tmp_path / "config.json"
    model_config.write_text(json.dumps(model))
    lines = [*plan_lines(EXAMPLES[name], model_config=model_config)]
    assert any("trtllm-build --checkpoint_dir" in line for line in lines)
    assert any(line.startswith("weights") for line in lines)
    assert not any("not known" in line for line in lines)
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", EXAMPLES[name].read_text())
    assert (EXAMPLES[name].parent / match[1]).is_file()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_read_without_a_note(name: str) -> None:
    assert read_config(EXAMPLES[name]).notes == ()
