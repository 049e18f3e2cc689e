"""What is accepted as an engine in a directory, with and without a manifest."""

import io
import json
from pathlib import Path

import pytest

from engine.directory import load
from engine.tar.manifest import MANIFEST_NAME
from engine.tar.unpack import unpack
from errors.engine_tar import (
    EngineFileDamaged,
    EngineFileMissing,
    EngineNotFound,
    InvalidManifest,
    TokenizerMissing,
)
from tests.engine.samples import FILES, LEGACY_FILES, packed, write_files


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    unpack(io.BytesIO(packed(tmp_path).read_bytes()), tmp_path / "engine")
    return tmp_path / "engine"


def test_what_was_unpacked_loads_without_warnings(engine: Path) -> None:
    loaded = load(engine)
    assert (loaded.path, loaded.warnings) == (engine, ())
    assert loaded.manifest.model_id == "acme/tiny"
    assert set(loaded.manifest.files) == set(FILES)


def test_files_may_stand_beside_the_listed_ones_of_which_each_that_is_missing_or_short_is_named(
    engine: Path,
) -> None:
    (engine / "model.py").write_text("left over")
    assert load(engine).manifest.engine_kind == "transformers"
    notes = engine / "nested/deeper/notes.txt"
    notes.unlink()
    with pytest.raises(EngineFileMissing, match=r"nested/deeper/notes\.txt"):
        load(engine)
    notes.mkdir()
    with pytest.raises(EngineFileMissing):
        load(engine)
    (engine / "model.safetensors").write_bytes(b"12345")
    with pytest.raises(EngineFileDamaged, match=r"'model\.safetensors' .* has bytes 5, packed was 1048576"):
        load(engine)
    (engine / MANIFEST_NAME).write_text("{")
    with pytest.raises(InvalidManifest):
        load(engine)


def test_nothing_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    write_files(tmp_path / "photos", {"a.jpg": b"x", "config.json": b"[1]"})
    for name, told in [
        ("nothing", "does not exist"),
        ("empty", "is empty"),
        ("file", "is not a directory"),
        ("photos", "holds no engine"),
    ]:
        with pytest.raises(EngineNotFound, match=told) as caught:
            load(tmp_path / name)
        assert "give an engine.tar (path or URL), a folder of an engine" in str(caught.value)


def test_an_original_engine_tells_what_it_can(tmp_path: Path) -> None:
    loaded = load(write_files(tmp_path / "engine", LEGACY_FILES))
    manifest = loaded.manifest
    assert manifest.engine_kind == "tensorrt_llm"
    assert manifest.library.version == "0.16.0"
    assert (manifest.sm, manifest.world_size, manifest.dtype) == (None, 2, "float16")
    assert (manifest.quantization, manifest.model_id) == ("FP8", "acme/tiny")
    assert (manifest.max_batch_size, manifest.max_input_len, manifest.max_seq_len) == (64, 1024, 2048)
    assert manifest.build_config == {"model_id": "acme/tiny"}
    assert manifest.files["rank1.engine"].size_bytes == 3000
    assert manifest.files["rank1.engine"].sha256 is None
    assert len(loaded.warnings) == 1
    assert "GPU" in loaded.warnings[0]


def test_an_engine_of_the_older_layout_tells_what_it_can(tmp_path: Path) -> None:
    builder = {"precision": "float16", "tensor_parallel": 2}
    lengths = {"max_batch_size": 8, "max_input_len": 1024, "max_output_len": 512}
    config = {"builder_config": builder | lengths, "plugin_config": {"paged_kv_cache": True}}
    files = {f"llama_float16_tp2_rank{rank}.engine": b"0" for rank in range(2)}
    files["config.json"] = json.dumps(config).encode()
    loaded = load(write_files(tmp_path / "engine", files))
    manifest = loaded.manifest
    assert (manifest.world_size, manifest.max_batch_size, manifest.max_seq_len) == (2, 8, 1536)
    assert manifest.library is None
    assert any("version" in warning for warning in loaded.warnings)
    assert any("tokenizer.json" in warning for warning in loaded.warnings)


def test_an_engine_that_lacks_a_rank_a_checkpoint_and_names_that_collide_are_refused(tmp_path: Path) -> None:
    lacking = {name: content for name, content in LEGACY_FILES.items() if name != "rank1.engine"}
    with pytest.raises(EngineFileMissing, match=r"rank1\.engine"):
        load(write_files(tmp_path / "lacking", lacking))
    checkpoint = {"config.json": b'{"pretrained_config": {}}', "rank0.safetensors": b"x"}
    with pytest.raises(EngineNotFound, match="not compiled yet"):
        load(write_files(tmp_path / "checkpoint", checkpoint))
    with pytest.raises(InvalidManifest, match="occurs twice"):
        load(write_files(tmp_path / "colliding", LEGACY_FILES | {"Config.json": b"x"}))


def test_a_config_that_tells_nothing_makes_warnings_not_errors(tmp_path: Path) -> None:
    nothing = b'{"pretrained_config": 1, "build_config": {"max_batch_size": "x"}}'
    for config in (b"", b"[]", b"not json", b"[" * 100_000, nothing):
        loaded = load(write_files(tmp_path / "engine", {"rank0.engine": b"x", "config.json": config}))
        assert loaded.manifest.max_batch_size is None
        assert any("max_batch_size" in warning for warning in loaded.warnings)


def test_a_build_config_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    aliases = b"a: &a [x, x]\nb: &b [*a, *a]\nmodel_id: m"
    for text in (b"[1]", b": : :", b"\xff", b"a: [" * 5000, aliases, b"model_id: 5"):
        files = LEGACY_FILES | {"cog-trt-llm-config.yaml": text}
        assert load(write_files(tmp_path / "engine", files)).manifest.model_id is None


def test_a_hugging_face_folder_is_taken_for_what_it_is(tmp_path: Path) -> None:
    config = b'{"model_type": "llama", "torch_dtype": "bfloat16", "max_position_embeddings": 4096}'
    files = {"config.json": config, "model.safetensors": b"x", "tokenizer.json": b"{}"}
    loaded = load(write_files(tmp_path / "engine", files))
    assert (loaded.manifest.engine_kind, loaded.manifest.dtype) == ("transformers", "bfloat16")
    assert loaded.manifest.max_seq_len == 4096
    assert "engine_manifest.json" in loaded.warnings[0]
    write_files(tmp_path / "engine", {"engine_args.json": b"{}"})
    assert load(tmp_path / "engine").manifest.engine_kind == "vllm"
    (tmp_path / "engine" / "tokenizer.json").unlink()
    with pytest.raises(TokenizerMissing):
        load(tmp_path / "engine")
