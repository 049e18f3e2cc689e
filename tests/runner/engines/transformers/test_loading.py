"""What the ``transformers`` engine loads, what it refuses, and that nobody else pays for its imports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, T5Config

from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.messages import Ready
from runner.engines.server.loading import start_errors
from runner.engines.transformers.adapter import load
from tests.runner.engines.transformers.transformers_models import (
    MAX_SEQUENCE_LENGTH,
    VOCAB_SIZE,
    RecordingSink,
    llama,
    prompt,
    save_model,
    serve,
)

pytestmark = pytest.mark.engine_env


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama(), tmp_path_factory.mktemp("llama"))


def test_ready_tells_what_the_model_takes(directory: Path) -> None:
    with serve(directory, max_batch_size="3", dtype="", device="auto") as served:
        assert served.engine.ready == Ready(
            engine_kind="transformers",
            vocab_size=VOCAB_SIZE,
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            max_batch_size=3,
            takes_priority=True,
        )


def test_options_of_other_engines_are_not_its_business(directory: Path) -> None:
    with serve(directory, tokens_per_second="10", device="cpu", max_tokens_in_paged_kv_cache="100") as served:
        # Whole pages of the cache.
        assert served.engine.ready.max_sequence_length == 128


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", ""])
def test_a_cpu_computes_in_float32_unless_told_otherwise(directory: Path, dtype: str) -> None:
    with serve(directory, dtype=dtype, device="cpu") as served:
        assert served.engine._batching._manager.model.dtype == getattr(torch, dtype or "float32")
        assert len(served.answer(prompt(5), 4)[0]) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_size", "0"),
        ("max_batch_size", "many"),
        ("max_batch_size", "-3"),
        ("max_tokens_in_paged_kv_cache", "1.5"),
        ("dtype", "int8"),
        ("device", "tpu"),
        ("device", "cuda:99"),
    ],
)
def test_a_bad_option_is_named(directory: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        load(directory, RecordingSink(), {name: value})
    assert (raised.value.facts["name"], raised.value.facts["value"]) == (name, value)


def assert_refused(directory: Path, reason: str) -> None:
    with pytest.raises(EngineStartFailed) as raised, start_errors("transformers"):
        load(directory, RecordingSink(), {})
    assert raised.value.facts["engine_kind"] == "transformers"
    assert reason in str(raised.value)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, "config.json")
    assert_refused(tmp_path / "absent", "config.json")


def test_a_broken_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert_refused(tmp_path, "config.json")


def test_absent_weights_are_refused(directory: Path, tmp_path: Path) -> None:
    shutil.copy(directory / "config.json", tmp_path)
    assert_refused(tmp_path, "model.safetensors")


def test_truncated_weights_are_refused(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert_refused(tmp_path, "SafetensorError")


def test_a_models_own_code_is_not_run(directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    with pytest.raises(EngineStartFailed, match="custom code"), start_errors("transformers"):
        load(copy, RecordingSink(), {})
    assert not (tmp_path / "ran").exists()


def test_a_pickles_code_is_not_run(directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    tensors: dict[str, object] = dict(load_file(copy / "model.safetensors"))
    (copy / "model.safetensors").unlink()
    torch.save({**tensors, "extra": _Payload(tmp_path / "ran")}, copy / "pytorch_model.bin")
    with pytest.raises(EngineStartFailed), start_errors("transformers"):
        load(copy, RecordingSink(), {})
    assert not (tmp_path / "ran").exists()


class _Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._proof),)


def test_a_missing_weight_is_refused_rather_than_made_up(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_refused(tmp_path, "model.layers.1.mlp.up_proj.weight")


def test_a_cache_that_does_not_fit_is_refused(directory: Path) -> None:
    with pytest.raises(EngineStartFailed, match="MemoryError"), start_errors("transformers"):
        load(directory, RecordingSink(), {"max_tokens_in_paged_kv_cache": str(10**12)})


def test_a_model_that_can_not_be_batched_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=1, state_size=4)
    assert_refused(save_model(config, tmp_path), "MambaConfig has no ")


def test_a_model_that_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=VOCAB_SIZE).save_pretrained(tmp_path)
    assert_refused(tmp_path, "T5Config")


def test_the_registry_and_the_messages_do_not_import_torch() -> None:
    program = (
        "import sys, engine.kinds, runner.engines.protocol.adapter\n"
        "import runner.engines.transformers.sequence\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
