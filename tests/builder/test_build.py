"""A build gives one whole engine.tar of exactly what its kind needs, or a coded error and nothing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from builder.build import OWN_FOLDER, build
from builder.config.file import parse_config
from builder.kinds import all_steps, engine_plan
from engine.tar.manifest import Manifest
from errors.build import BuildFailed, NotEnoughSpace
from errors.build_config import (
    ConflictingBuildKeys,
    InvalidBuildValue,
    ModelPathInvalid,
    ModelUnusable,
    TokenizerUnusable,
)
from errors.coded_error import CodedError
from errors.engine_tar import NoSpaceLeft, PoolingUnsupported
from tests.builder import tensorrt_llm_builds as builds
from tests.builder import tiny_model
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.engine.pooling_files import write_pooling

TRANSFORMERS_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def run(tmp_path: Path, **keys: Any) -> tuple[Manifest, dict[str, bytes]]:
    """Build from ``keys``: the manifest and the tar's content."""
    return builds.run(tmp_path, keys)[:2]


def test_a_transformers_engine_of_a_hub_model_holds_its_files_and_facts(
    tmp_path: Path, repository: Repository
) -> None:
    manifest, content = run(tmp_path, model_id=MODEL_ID, max_batch_size=8)
    assert set(manifest.files) == TRANSFORMERS_FILES
    assert all(content[name] == repository.files[name] for name in TRANSFORMERS_FILES)
    facts = (manifest.engine_kind, manifest.model_id, manifest.revision, manifest.dtype)
    assert facts == ("transformers", MODEL_ID, repository.commit, "float32")
    assert (manifest.max_seq_len, manifest.max_input_len, manifest.max_batch_size) == (64, 63, 8)
    assert manifest.build_config == {"model_id": MODEL_ID, "max_batch_size": 8}


def test_equal_configs_give_equal_bytes(tmp_path: Path, repository: Repository) -> None:
    run(tmp_path, model_id=MODEL_ID)
    first = (tmp_path / "engine.tar").read_bytes()
    run(tmp_path, model_id=MODEL_ID)
    assert (tmp_path / "engine.tar").read_bytes() == first


def test_a_local_model_needs_no_hub_and_its_weights_are_not_copied(
    tmp_path: Path, model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[int] = []
    link = os.link

    def counted(source: Path, destination: Path) -> None:
        link(source, destination)
        links.append(destination.stat().st_nlink)

    monkeypatch.setattr(os, "link", counted)
    manifest, _ = run(tmp_path, model_path="model", dtype="float16", max_seq_len=32)
    assert hub.requests == []
    assert links == [2] * len(TRANSFORMERS_FILES)
    assert (manifest.model_id, manifest.revision) == ("model", None)
    assert (manifest.dtype, manifest.max_seq_len) == ("float16", 32)


def test_sharded_weights_are_packed_with_their_index(tmp_path: Path, model: Path) -> None:
    shards = {f"model-{number:05}-of-00002.safetensors" for number in (1, 2)}
    for shard in shards:
        shutil.copy(model / "model.safetensors", model / shard)
    (model / "model.safetensors").unlink()
    weight_map = {shard: shard for shard in shards}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert {*shards, "model.safetensors.index.json"} < set(run(tmp_path, model_path="model")[0].files)


def test_a_paced_engine_is_a_tokenizer_and_a_rate_and_takes_no_weights(
    tmp_path: Path, hub: HubServer, repository: Repository
) -> None:
    manifest, content = run(tmp_path, engine="paced", model_id=MODEL_ID, paced={"tokens_per_second": 100})
    assert not hub.asked_for("model.safetensors")
    assert set(manifest.files) == {*TRANSFORMERS_FILES, "paced.json"} - {"model.safetensors"}
    assert json.loads(content["paced.json"]) == {"tokens_per_second": 100}
    vocab_size = Tokenizer.from_str(content["tokenizer.json"].decode()).get_vocab_size()
    assert json.loads(content["config.json"]) == {
        "max_position_embeddings": 64,
        "vocab_size": vocab_size,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    assert (manifest.engine_kind, manifest.dtype, manifest.max_seq_len) == ("paced", None, 64)


def test_a_tokenizer_without_its_config_gets_the_least_that_loads(tmp_path: Path, model: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    _, content = run(tmp_path, model_path="model")
    assert json.loads(content["tokenizer_config.json"]) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


def test_code_is_packed_only_when_it_is_asked_for(tmp_path: Path, model: Path) -> None:
    assert "modeling_tiny.py" in run(tmp_path, model_path="model", trust_remote_code=True)[0].files


def test_progress_is_told_step_by_step(tmp_path: Path, model: Path) -> None:
    _, _, lines = builds.run(tmp_path, {"model_path": "model", "merge": True})
    assert lines[0].startswith("merge: ignored")
    config = parse_config(b"model_path: model", shown="", folder=None).config
    planned = [line for line, _ in all_steps(engine_plan(config))]
    assert [line for line in lines if line.startswith("[")] == planned
    assert planned[0] == "[1/5] read model (safetensors, else bin, else pt)"


def truncated(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:-1])


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda model: (model / name).unlink()


_HEADER = b'{"a": {"dtype": "F32", "data_offsets": [0, Infinity]}}'
ENDLESS = len(_HEADER).to_bytes(8, "little") + _HEADER
BREAKAGES: list[tuple[Callable[[Path], object], type[CodedError], str]] = [
    (remove("config.json"), ModelUnusable, "no config.json"),
    (write("config.json", b"{"), ModelUnusable, "not JSON"),
    (write("config.json", b"[]"), ModelUnusable, "not a JSON object"),
    (truncated, ModelUnusable, "its header announces"),
    (write("model.safetensors", b"PK"), ModelUnusable, "not a whole"),
    (write("model.safetensors", b"\2" + bytes(7) + b"[]"), ModelUnusable, "not safetensors"),
    (write("model.safetensors", ENDLESS), ModelUnusable, "not safetensors"),
    (write("tokenizer.json", b"{}"), TokenizerUnusable, "can't be loaded"),
    (write("tokenizer_config.json", b"{"), ModelUnusable, "not JSON"),
    (remove("tokenizer.json"), TokenizerUnusable, "neither tokenizer.json"),
]


@pytest.mark.parametrize(("break_it", "error", "reason"), BREAKAGES)
def test_a_broken_model_is_refused_and_leaves_nothing(
    tmp_path: Path,
    model: Path,
    cache: Path,
    break_it: Callable[[Path], object],
    error: type[CodedError],
    reason: str,
) -> None:
    break_it(model)
    with pytest.raises(error) as caught:
        run(tmp_path, model_path="model")
    assert reason in str(caught.value)
    assert not (tmp_path / "engine.tar").exists()
    assert list((cache / "builds").iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "error", "reason"),
    [
        ({}, ConflictingBuildKeys, "names no model"),
        ({"model_path": "m", "model_tar_url": "http://h/x.tar"}, ConflictingBuildKeys, "both"),
        ({"model_path": "m", "revision": "main"}, ConflictingBuildKeys, "revision"),
        ({"engine": "paced", "model_id": "a"}, ConflictingBuildKeys, "lacks paced.tokens_per_second"),
        ({"engine": "paced", "model_id": "a", "dtype": "float16", "paced": {"tokens_per_second": 1}},
         ConflictingBuildKeys, "gives dtype, which engine paced does not use"),
        ({"model_id": "a", "paced": {"tokens_per_second": 1}}, ConflictingBuildKeys, "gives paced"),
        ({"model_id": "a", "engine": "tensorrt_llm"}, ConflictingBuildKeys, "has no build"),
        ({"model_path": "model", "max_seq_len": 65}, InvalidBuildValue, "at most 64"),
        ({"model_path": "nothing"}, ModelPathInvalid, "is not a folder"),
        ({"model_path": "link"}, ModelPathInvalid, "is not a folder"),
    ],
)  # fmt: skip
def test_a_config_that_can_not_be_built_is_refused(
    tmp_path: Path, model: Path, hub: HubServer, keys: dict[str, Any], error: type[CodedError], reason: str
) -> None:
    (tmp_path / "link").symlink_to("/nothing")
    with pytest.raises(error) as caught:
        run(tmp_path, **keys)
    assert reason in str(caught.value)
    assert hub.requests == []


def test_a_disk_that_is_too_small_is_told_before_the_download(
    tmp_path: Path, hub: HubServer, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(NotEnoughSpace, match="COG_TRITON_CACHE"):
        run(tmp_path, model_id=MODEL_ID)
    assert not hub.asked_for("model.safetensors")


def test_a_cache_that_can_not_be_written_is_told(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("COG_TRITON_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildFailed, match="can be read and written"):
        run(tmp_path, model_path="model")


def test_a_full_disk_is_named_and_not_the_file_that_was_copied(
    tmp_path: Path, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(source: Path, destination: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(destination))

    monkeypatch.setattr("builder.weights.files.os.link", fill)
    with pytest.raises(NoSpaceLeft, match="free some space") as caught:
        run(tmp_path, model_path="model")
    assert str(caught.value.facts["place"]).startswith(str(cache))


def test_what_a_killed_build_left_is_removed(tmp_path: Path, model: Path, cache: Path) -> None:
    left = cache / "builds" / ".build.cog-triton-staged-dead"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(b"x")
    left.with_name(f"{left.name}.lock").write_bytes(b"")
    run(tmp_path, model_path="model")
    assert list((cache / "builds").iterdir()) == []


def test_the_examples_that_ship_build_without_a_network(tmp_path: Path, hub: HubServer) -> None:
    for example, kind in {"tiny": "transformers", "paced": "paced"}.items():
        config = OWN_FOLDER / "examples" / example / "config.yaml"
        assert build(config, tmp_path / "engine.tar", report=lambda line: None).engine_kind == kind
    assert hub.requests == []


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_an_embedding_engine_holds_what_describes_its_pooling_and_any_all_chat_templates(
    tmp_path: Path, repository: Repository, kind: str
) -> None:
    write_pooling(tmp_path / "pooling", size=tiny_model.HIDDEN, max_tokens=32)
    pooling = ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
    repository.files |= {name: (tmp_path / "pooling" / name).read_bytes() for name in pooling}
    templates = ["chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"]
    repository.files |= {name: name.encode() for name in templates} | {"onnx/config.json": b"{}"}
    manifest, content = run(tmp_path, model_id=MODEL_ID, engine=kind)
    arguments = {"engine_args.json"} if kind == "vllm" else set()
    assert set(manifest.files) == TRANSFORMERS_FILES | {*pooling, *templates} | arguments
    assert all(content[name] == repository.files[name] for name in (*pooling, *templates))
    assert (manifest.max_seq_len, manifest.max_input_len) == (32, 32)


def test_a_pooling_that_is_not_supported_is_refused(tmp_path: Path, model: Path) -> None:
    write_pooling(model, modules=("Transformer", "Pooling", "Dense"), size=tiny_model.HIDDEN)
    with pytest.raises(PoolingUnsupported, match="the module Dense is not supported"):
        run(tmp_path, model_path="model")
