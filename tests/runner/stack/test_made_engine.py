"""MODEL_ID: the runner has the builder make an engine of a model, as another program."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.directory import load
from engine.machine.root import SOURCE_ROOT
from errors.build_config import WeightFormatMissing
from errors.engine_tar import EngineNotFound
from runner.settings.settings import load_settings
from runner.stack.served_engine import make_engine

MODEL = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model"


def made(model: str, cache: Path) -> tuple[Path, list[str]]:
    lines: list[str] = []
    settings = load_settings({"MODEL_ID": model, "COG_TRITON_CACHE": str(cache)})
    return make_engine(settings, lines.append), lines


def test_a_model_is_made_an_engine_and_what_happens_is_logged(tmp_path: Path) -> None:
    engine, lines = made(str(MODEL), tmp_path)
    assert load(engine).manifest.engine_kind == "transformers"
    assert engine.is_relative_to(tmp_path)
    assert any("[1/5] read model" in line for line in lines)
    assert all(line.startswith("model: ") for line in lines)


@pytest.mark.slow
def test_the_builders_error_is_the_runners(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WeightFormatMissing, match="has no weights"):
        made(str(tmp_path), tmp_path / "cache")
    with pytest.raises(EngineNotFound, match="none"):
        made(str(tmp_path / "none"), tmp_path / "cache")
