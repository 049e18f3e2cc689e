"""Every example and every config of old is planned with its commands and sizes, knowing only config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import builder
from builder.config.file import read_config
from builder.plan import plan_lines
from tests.builder.trtllm.model_configs import MODEL_CONFIGS
from tests.builder.trtllm.old.old_configs import ALL

_FOLDER = Path(builder.__path__[0]) / "examples"
EXAMPLES = sorted([*_FOLDER.glob("gpt/*.yaml"), *_FOLDER.glob("llama/*.yaml")])


def planned(path: Path, folder: Path) -> list[str]:
    """The plan of ``path``, with its model's config.json from here."""
    model_config = folder / "config.json"
    model_config.write_text(json.dumps(MODEL_CONFIGS[str(read_config(path).config.model_id)]))
    return [*plan_lines(path, model_config=model_config)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda each: each.stem)
def test_each_example_is_planned(path: Path, tmp_path: Path) -> None:
    lines = planned(path, tmp_path)
    assert any("trtllm-build --checkpoint_dir" in line for line in lines)
    assert any(line.startswith("weights") for line in lines)
    assert not any("not known" in line for line in lines)


@pytest.mark.parametrize("name", ALL)
def test_each_config_of_old_is_planned(name: str, tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(ALL[name])
    lines = planned(path, tmp_path)
    assert any("trtllm-build --checkpoint_dir" in line for line in lines)
    assert not any("not known" in line for line in lines)
