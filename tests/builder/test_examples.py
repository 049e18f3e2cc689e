"""The examples are in today's form, without a word of old, and what they ask for can be built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import builder
from builder.config.file import read_config
from builder.trtllm.rules import check
from builder.trtllm.sizing import fit_model
from builder.trtllm.summary import TrtllmBuild

FOLDER = Path(builder.__path__[0]) / "examples"
TRTLLM = sorted([*FOLDER.glob("gpt/*.yaml"), *FOLDER.glob("llama/*.yaml")])
POSITIONS = {
    "config": 1024, "gpt-medium-build-config": 1024, "starcoder": 8192, "llama-3.1-8b-instruct-awq": 131072,
    "mistral-7b-instruct-v0.2": 32768,
}  # fmt: skip
"""Of Llama 2, the others here, it is 4096."""
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


def planned(path: Path) -> TrtllmBuild:
    file = read_config(path)
    assert file.notes == ()
    build, notes = check(file.config)
    assert notes == []
    return build


def test_every_shape_has_its_example() -> None:
    assert {f"{path.parent.name}/{path.stem}" for path in TRTLLM} == set(ASKED)


@pytest.mark.parametrize("path", TRTLLM, ids=lambda each: each.stem)
def test_each_example_is_checked_and_fits_its_model(path: Path) -> None:
    build = planned(path)
    quantization, world_size = ASKED[f"{path.parent.name}/{path.stem}"]
    assert (build.quantization, build.world_size) == (quantization, world_size)
    assert not build.fit_lengths
    fit_model(build, POSITIONS.get(path.stem, 4096))


@pytest.mark.parametrize("path", TRTLLM, ids=lambda each: each.stem)
def test_each_example_names_the_schema_for_editors(path: Path) -> None:
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
    assert match is not None
    assert (path.parent / match[1]).is_file()


@pytest.mark.parametrize(
    "path", sorted(FOLDER.rglob("*.yaml")), ids=lambda each: f"{each.parent.name}-{each.stem}"
)
def test_every_example_is_read_without_a_note(path: Path) -> None:
    assert read_config(path).notes == ()
