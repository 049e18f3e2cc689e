"""What a runner checks before it starts anything."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from engine.machine.gpu import detected_sm
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from engine.tar.unpack import unpack
from errors.machine import GpuRequired
from errors.settings import InvalidSetting
from runner.service import Service
from runner.settings.paths import engine_socket_path
from runner.settings.settings import load_settings
from runner.supervision.child import Log


def engine_tar(folder: Path, facts: EngineFacts) -> Path:
    content = folder / "content"
    content.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (content / name).write_text(json.dumps({}))
    pack(content, facts, folder / "engine.tar")
    return folder / "engine.tar"


def open_service(tmp_path: Path, log: Log = lambda line: None, **environment: str) -> None:
    settings = load_settings({"COG_TRITON_CACHE": str(tmp_path / "cache"), **environment})
    asyncio.run(Service(settings, log).open())


@pytest.mark.servers
@pytest.mark.skipif(detected_sm() is not None, reason="there is a GPU")
@pytest.mark.parametrize("is_directory", [False, True])
def test_an_engine_that_needs_a_gpu_is_refused_before_anything_starts(
    tmp_path: Path, is_directory: bool
) -> None:
    tar = engine_tar(tmp_path, EngineFacts(engine_kind="tensorrt_llm", sm=86))
    environment = {"COG_WEIGHTS": str(tar)}
    if is_directory:
        with tar.open("rb") as stream:
            unpack(stream, tmp_path / "engine")
        environment = {"ENGINE_DIR": str(tmp_path / "engine")}
    with pytest.raises(GpuRequired, match="E1323"):
        open_service(tmp_path, **environment)
    engines = tmp_path / "cache" / "engines"
    assert not engines.exists() or not [path for path in engines.iterdir() if path.is_dir()]


@pytest.mark.servers
def test_a_world_size_that_disagrees_with_the_engine_is_refused(tmp_path: Path) -> None:
    tar = engine_tar(tmp_path, EngineFacts(engine_kind="paced", world_size=2))
    lines: list[str] = []
    with pytest.raises(InvalidSetting, match="WORLD_SIZE must be 2"):
        open_service(tmp_path, lines.append, COG_WEIGHTS=str(tar), MODEL_ID="a/b", WORLD_SIZE="4")
    assert "engine: MODEL_ID is not used, because COG_WEIGHTS names an engine" in lines


def test_a_folder_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    with pytest.raises(InvalidSetting, match="TMPDIR"):
        engine_socket_path(8000)
