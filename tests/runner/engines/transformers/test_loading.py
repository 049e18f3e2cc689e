"""What the ``transformers`` engine loads, what it refuses, and that nobody else pays for its imports."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
    prompt,
    save_model,
    serve,
)

pytestmark = pytest.mark.engine_env


def test_ready_tells_what_the_model_takes(directory: Path) -> None:
    with serve(directory, max_batch_size="3", dtype="", device="auto", tokens_per_second="10") as served:
        assert served.engine.ready == Ready(
            engine_kind="transformers",
            vocab_size=VOCAB_SIZE,
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            max_batch_size=3,
            takes_priority=True,
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", ""])
def test_a_cpu_computes_in_float32_unless_told_otherwise(directory: Path, dtype: str) -> None:
    with serve(directory, dtype=dtype, device="cpu") as served:
        assert served.engine._batch._manager.model.dtype == getattr(torch, dtype or "float32")
        assert len(served.answer(prompt(5), 4)[0]) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_size", "0"),
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


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def leave_out_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def bring_own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")


def bring_a_pickle(folder: Path) -> None:
    tensors: dict[str, object] = dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "extra": _Payload(folder / "ran")}, folder / "pytorch_model.bin")


MAMBA = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=1, state_size=4)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (shutil.rmtree, "config.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (truncate, "SafetensorError"),
        (leave_out_a_weight, "model.layers.1.mlp.up_proj.weight"),
        (partial(save_model, MAMBA), "MambaConfig has no "),
        (T5Config(vocab_size=VOCAB_SIZE).save_pretrained, "T5Config"),
        (bring_own_code, "custom code"),
        (bring_a_pickle, ""),
    ],
)
def test_a_model_that_lacks_something_is_no_decoder_or_brings_code_is_refused(
    directory: Path, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    spoil(copy)
    with pytest.raises(EngineStartFailed) as raised, start_errors("transformers"):
        load(copy, RecordingSink(), {})
    assert raised.value.facts["engine_kind"] == "transformers"
    assert reason in str(raised.value)
    assert not (copy / "ran").exists()


class _Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._proof),)


def test_a_cache_that_does_not_fit_is_refused(directory: Path) -> None:
    with pytest.raises(EngineStartFailed, match="MemoryError"), start_errors("transformers"):
        load(directory, RecordingSink(), {"max_tokens_in_paged_kv_cache": str(10**12)})


def test_the_registry_and_the_messages_do_not_import_torch() -> None:
    program = (
        "import sys, engine.kinds, runner.engines.protocol.adapter\n"
        "import runner.engines.sequence\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
