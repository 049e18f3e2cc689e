"""The examples are in today's form, without a word of old, and are planned from config.json alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import builder
from builder.config.file import read_config
from builder.plan import plan_lines
from builder.trtllm.rules import check
from tests.builder.trtllm.model_configs import MODEL_CONFIGS

FOLDER = Path(builder.__path__[0]) / "examples"
EXAMPLES = {f"{path.parent.name}/{path.stem}": path for path in FOLDER.rglob("*.yaml")}
ASKED = {
    "gpt/config": (None, 1),
    "gpt/gpt-medium-build-config": (None, 1),
    "gpt/starcoder": ("W8A8_SQ_PER_TENSOR_PLUGIN", 1),
    "llama/llama-2-13b-chat-int8-2gpu": ("W8A16", 2),
    "llama/llama-2-13b-chat-sq-1gpu": ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", 1),
    "llama/llama-2-70b-4gpu": (None, 4),
    "llama/llama-2-7b-chat-1gpu": (None, 1),
    "llama/llama-2-7b-chat-int8-1gpu": ("W8A16", 1),
    "llama/llama-3.1-8b-instruct-awq": ("W4A16_AWQ", 1),
    "llama/mistral-7b-instruct-v0.2": (None, 1),
}


def test_every_shape_has_its_example() -> None:
    assert {name for name in EXAMPLES if name.startswith(("gpt/", "llama/"))} == set(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_each_example_is_checked_and_planned_and_names_the_schema_for_editors(
    name: str, tmp_path: Path
) -> None:
    config = read_config(EXAMPLES[name]).config
    build, notes = check(config)
    assert (build.quantization, build.world_size) == ASKED[name]
    assert not build.fit_lengths
    assert notes == []
    model_config = tmp_path / "config.json"
    model_config.write_text(json.dumps(MODEL_CONFIGS[str(config.model_id)]))
    lines = [*plan_lines(EXAMPLES[name], model_config=model_config)]
    assert any("trtllm-build --checkpoint_dir" in line for line in lines)
    assert any(line.startswith("weights") for line in lines)
    assert not any("not known" in line for line in lines)
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", EXAMPLES[name].read_text())
    assert match is not None
    assert (EXAMPLES[name].parent / match[1]).is_file()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_read_without_a_note(name: str) -> None:
    assert read_config(EXAMPLES[name]).notes == ()
