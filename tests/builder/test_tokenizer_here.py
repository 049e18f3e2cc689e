"""``api --tokenizer MODEL``: what a name stands for, and the files that the API server reads of it."""

import json
from pathlib import Path

import pytest

from builder.tokenizer_here import tokenizer_here
from engine.directory import load
from errors.settings import InvalidSetting
from runner.generation.model import load_model_facts
from runner.settings.settings import load_settings
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import Repository
from tests.runner.paced_engine import make_paced_model, make_tokenizer


def made(named: Path | str) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return tokenizer_here(str(named), report=lines.append, progress=lambda *_: None), lines


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small-model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "n_positions": 77}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    return folder


@pytest.mark.usefixtures("cache")
def test_a_models_folder_gives_its_tokenizer_template_end_tokens_and_length(model: Path) -> None:
    folder, _ = made(model)
    facts = load_model_facts(load(folder), load_settings({"HOME": "/nowhere"}))
    assert (facts.end_ids, facts.max_sequence_length, facts.chat.exists) == ((5, 6, 0), 77, True)
    assert load(folder).manifest.model_id == "small-model"
    # The next start reads the model again.
    (model / "generation_config.json").unlink()
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    again, _ = made(model)
    assert again == folder
    assert load_model_facts(load(again), load_settings({"HOME": "/nowhere"})).end_ids == (7, 0)


@pytest.mark.usefixtures("cache")
def test_a_folder_with_a_tokenizer_alone_has_no_length(model: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        (model / name).unlink()
    folder, _ = made(model)
    assert load(folder).manifest.max_seq_len is None


def test_a_model_of_the_hub_is_asked_for_without_weights_and_kept_for_when_the_hub_is_gone(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = made(MODEL_ID)
    assert (folder / "tokenizer.json").is_file()
    assert load(folder).manifest.model_id == MODEL_ID
    assert not [path for path in cache.rglob("*") if path.suffix == ".safetensors"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    again, lines = made(MODEL_ID)
    assert again == folder
    assert "can't be asked" in lines[-1]


def test_an_engines_folder_is_used_as_it_is(tmp_path: Path) -> None:
    engine = make_paced_model(tmp_path, 100).directory
    assert made(engine)[0] == engine


@pytest.mark.usefixtures("cache")
def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    for named in (tmp_path / "engine.tar", tmp_path / "nothing", tmp_path):
        with pytest.raises(InvalidSetting, match=r"E1006 .*--tokenizer must be a model's folder"):
            made(named)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidSetting, match=r"E1006 .*--tokenizer"):
        made(tmp_path / "model.gguf")
