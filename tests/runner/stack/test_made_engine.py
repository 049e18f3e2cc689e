"""MODEL_ID: the runner has the builder make an engine of a model, as another program."""

from pathlib import Path

import pytest

from engine.directory import load
from engine.machine.gpu import Gpu
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import Manifest
from errors.build_config import WeightFormatMissing
from errors.engine_tar import EngineNotFound
from errors.machine import WrongImage
from errors.settings import InvalidSetting
from runner.settings.settings import load_settings
from runner.stack import served_engine
from runner.stack.served_engine import check_servable, make_engine, open_served_engine

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


def test_a_wrong_image_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_engine, "visible_gpus", lambda: (Gpu(89, "NVIDIA L4"),))
    monkeypatch.setattr(served_engine, "make_engine", pytest.fail)
    settings = load_settings({"MODEL_ID": str(MODEL), "COG_TRITON_IMAGE": "cog-triton-runner-vllm-90"})
    refused = r"NVIDIA L4 is SM 89: use cog-triton-runner-vllm-89"
    with pytest.raises(WrongImage, match=refused):
        open_served_engine(settings, pytest.fail, lambda *_: None, print)
    for kind in ("vllm", "transformers"):
        with pytest.raises(WrongImage, match=refused):
            check_servable(settings, Manifest(engine_kind=kind, files={}))
    with pytest.raises(WrongImage, match="SM 89: use cog-triton-runner-tensorrt-llm-pytorch-89"):
        check_servable(settings, Manifest(engine_kind="tensorrt_llm_pytorch", files={}))


def test_kv_events_are_refused_for_an_engine_that_has_none() -> None:
    settings = load_settings({"KV_EVENTS": "tcp://*:5557"})
    check_servable(settings, Manifest(engine_kind="paced", files={}))
    refused = "KV_EVENTS must be unset, because engines of the kind transformers publish no KV events"
    with pytest.raises(InvalidSetting, match=refused):
        check_servable(settings, Manifest(engine_kind="transformers", files={}))


@pytest.mark.slow
def test_the_builders_error_is_the_runners(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WeightFormatMissing, match="has no weights"):
        made(str(tmp_path), tmp_path / "cache")
    with pytest.raises(EngineNotFound, match="none"):
        made(str(tmp_path / "none"), tmp_path / "cache")
