"""Slow tokenizers and pickled weights become fast and safe ones, in the real engine environment."""

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from builder.engine_environment import program_environment
from engine.machine.python import engine_python
from engine.tar.manifest import Manifest
from errors.build import ConversionFailed
from errors.build_config import ModelUnusable, TokenizerUnusable
from tests.builder import tiny_model
from tests.builder.unpacked_builds import built
from tests.engine.samples import write_files

pytestmark = pytest.mark.slow

SHARED, NESTED, PARTS = "views that share memory", "a training checkpoint", "parts"
MAKE_WEIGHTS = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
folder = Path(sys.argv[1])
tensors = load_file(folder / "model.safetensors")
names = sorted(tensors)
views = {name: tensors[name] for name in names}
views["lm_head.weight"] = views["model.embed_tokens.weight"]
views["model.norm.weight"] = torch.stack([tensors["model.norm.weight"]] * 3)[1]
shared, nested, parts = (folder / name for name in sys.argv[2:])
for each in (shared, nested, parts):
    each.mkdir()
torch.save(views, shared / "pytorch_model.bin")
torch.save({"epoch": 3, "state_dict": tensors}, nested / "model.pt")
for number, modern in ((1, True), (2, False)):
    part = {name: tensors[name] for name in names[number - 1 :: 2]}
    file = parts / f"pytorch_model-{number:05}-of-00002.bin"
    torch.save(part, file, _use_new_zipfile_serialization=modern)
"""
LOAD = """
import sys
from transformers import AutoModelForCausalLM
_, problems = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not any(problems.values()), problems
"""


def in_engine_environment(code: str, *arguments: object) -> None:
    subprocess.run([engine_python(), "-c", code, *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module", autouse=True)
def _engine_environment() -> None:
    probe = [engine_python(), "-c", "import torch, transformers, safetensors"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip(
            f"{engine_python()} has no torch and transformers: make setup, or COG_TRITON_ENGINE_PYTHON"
        )


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny model's weights, as torch pickles them, in three ways and folders."""
    folder = tmp_path_factory.mktemp("pickled")
    (folder / "model.safetensors").write_bytes(tiny_model.safetensors(tiny_model.tensors()))
    in_engine_environment(MAKE_WEIGHTS, folder, SHARED, NESTED, PARTS)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Provide the tiny model without any weights."""
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    return write_files(tmp_path / "model", {name: tiny_model.files()[name] for name in names})


def run(tmp_path: Path, **keys: Any) -> tuple[Manifest, Path]:
    """Build from the folder ``model``: the manifest, and a folder with the engine unpacked."""
    return built(tmp_path, keys)


def tensors_of(engine: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in engine.glob("*.safetensors"):
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:start])
        assert header.pop("__metadata__") == {"format": "pt"}
        for name, tensor in header.items():
            first, last = tensor["data_offsets"]
            found[name] = content[start + first : start + last]
    return found


@pytest.mark.parametrize("form", [PARTS, SHARED, NESTED])
def test_pickled_weights_become_safetensors(tmp_path: Path, model: Path, pickled: Path, form: str) -> None:
    shutil.copytree(pickled / form, model, dirs_exist_ok=True)
    manifest, engine = run(tmp_path)
    expected = {name: tensor.tobytes() for name, tensor in tiny_model.tensors().items()}
    if form == SHARED:  # Each is stored on its own.
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
    assert tensors_of(engine) == expected
    if form == PARTS:
        weight_map = json.loads((engine / "model.safetensors.index.json").read_text())["weight_map"]
        assert set(weight_map) == set(expected)
        assert set(weight_map.values()) == {f"model-{n:05}-of-00002.safetensors" for n in (1, 2)}
        assert not [name for name in manifest.files if name.endswith(".bin")]
    elif form == NESTED:
        in_engine_environment(LOAD, engine)


class Payload:
    """An object that makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._proof),)


def zipped(pickled: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3")
    return content.getvalue()


@pytest.mark.parametrize(("name", "pack"), [("pytorch_model.bin", bytes), ("model.pt", zipped)])
def test_pickles_that_hold_more_than_tensors_are_refused_and_not_run(
    tmp_path: Path, model: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (model / name).write_bytes(pack(pickle.dumps({"weight": Payload(tmp_path / "ran")})))
    with pytest.raises(ConversionFailed, match="weights into safetensors"):
        run(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "engine.tar").exists()


MAKE_SCRIPT = """
import sys, torch
torch.jit.trace(torch.nn.Linear(1, 1), torch.zeros(1)).save(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["a TorchScript archive", "a tar"])
def test_formats_that_hold_code_are_refused_before_torch_sees_them(
    tmp_path: Path, model: Path, kind: str
) -> None:
    path = model / "pytorch_model.bin"
    if kind == "a tar":
        with tarfile.open(path, "w") as tar:
            tar.add(model / "config.json", "pickle")
    else:
        in_engine_environment(MAKE_SCRIPT, path)
    with pytest.raises(ModelUnusable, match=f"pytorch_model.bin is {kind} and may hold code"):
        run(tmp_path)


def test_programs_that_ask_for_everything_in_a_pickle_do_not_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load it as TensorRT-LLM's converters do, by a plain torch.load that once meant this."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(zipped(pickle.dumps({"weight": Payload(tmp_path / "ran")})))
    command = [engine_python(), "-c", "import sys, torch; torch.load(sys.argv[1], weights_only=False)", path]
    loading = subprocess.run(
        command, env=program_environment(offline=True), capture_output=True, text=True, check=False
    )
    assert "UnpicklingError" in loading.stderr
    assert not (tmp_path / "ran").exists()
    subprocess.run(
        command, env={**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": ""}, capture_output=True, check=False
    )
    assert (tmp_path / "ran").exists(), "the pickle does no harm to anyone"


def paced(tmp_path: Path) -> tuple[Manifest, Path]:
    return run(tmp_path, engine="paced", paced={"tokens_per_second": 0})


def test_a_slow_byte_level_tokenizer_becomes_a_fast_one(tmp_path: Path, model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    original = Tokenizer(models.BPE())
    original.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    original.train_from_iterator(tiny_model.TEXT, trainer)
    original.model.save(str(model))
    _, engine = paced(tmp_path)
    fast = Tokenizer.from_file(str(engine / "tokenizer.json"))
    for text in tiny_model.TEXT:
        assert fast.encode(text).tokens == original.encode(text).tokens
        assert fast.decode(fast.encode(text).ids) == text
    assert json.loads((engine / "tokenizer_config.json").read_text())["tokenizer_class"]


def test_a_tokenizer_that_can_not_be_converted_is_told_with_the_reason(tmp_path: Path, model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").write_bytes(struct.pack("<Q", 7))
    with pytest.raises(TokenizerUnusable, match="making a fast tokenizer"):
        paced(tmp_path)


def test_an_engine_python_that_is_none_is_told(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "pytorch_model.bin").write_bytes(b"x")
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", str(tmp_path / "no-python"))
    with pytest.raises(ConversionFailed, match="COG_TRITON_ENGINE_PYTHON"):
        run(tmp_path)


def test_the_program_gets_no_token_and_no_network(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "pytorch_model.bin").write_bytes(b"x")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nenv > {tmp_path}/environment\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", str(python))
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    with pytest.raises(ConversionFailed, match="exit code 3"):
        run(tmp_path, hf_token="hf_planted")
    environment = (tmp_path / "environment").read_text()
    assert "hf_planted" not in environment
    assert "HF_HUB_OFFLINE=1" in environment
