"""The builder behind the real Cog server: a config goes in, an engine.tar comes out, a token never."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.inspect import verify
from tests.builder import tiny_model
from tests.builder.cog_server import CogServer, served_configs
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.runner.servers import DEADLINE_S

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("src")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(folder: Path, hub: HubServer) -> Iterator[CogServer]:
    cog = CogServer(
        folder,
        {
            "HF_ENDPOINT": hub.url,
            "COG_TRITON_CACHE": str(folder / "cache"),
            "HF_HOME": str(folder / "hf"),
            "TMPDIR": str(folder),
        },
    )
    yield cog
    cog.close()


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Callable[..., str]]:
    """Write a config and serve it on loopback: its keys -> its URL."""
    with served_configs(folder) as serve:
        yield lambda **keys: serve(keys)


@pytest.fixture(autouse=True)
def repository(hub: HubServer) -> Repository:
    hub.repositories[MODEL_ID] = Repository(tiny_model.files(), lfs={"model.safetensors"})
    return hub.repositories[MODEL_ID]


def test_a_config_url_gives_a_verified_engine_tar_and_leaves_it_in_the_working_directory(
    server: CogServer, serve: Callable[..., str], repository: Repository
) -> None:
    answer = server.build(config=serve(model_id=MODEL_ID))
    assert answer["status"] == "succeeded", answer
    header, _, content = answer["output"].partition(",")
    assert header == "data:application/x-tar;base64"
    engine_tar = server.folder / "engine.tar"
    assert base64.b64decode(content) == engine_tar.read_bytes()
    manifest = verify(engine_tar)
    assert (manifest.model_id, manifest.revision) == (MODEL_ID, repository.commit)
    assert "model.safetensors" in manifest.files
    assert server.build(config="./config.yaml")["status"] == "succeeded"  # A path on the builder, too.


def test_a_wrong_config_gives_its_code_no_tar_and_a_server_that_goes_on(
    server: CogServer, serve: Callable[..., str]
) -> None:
    wrong: dict[str, dict[str, object]] = {
        "E1202": {"model_idd": MODEL_ID},
        "E1203": {"model_id": MODEL_ID, "max_seq_len": 65},
        "E1204": {},
        "E1205": {"model_path": "no/such/folder"},
        "E1206": {"model_id": "acme/none"},
        "E1208": {"model_id": MODEL_ID, "weight_format": "pt"},
    }
    for code, keys in wrong.items():
        (server.folder / "engine.tar").write_bytes(b"of an earlier build")
        answer = server.build(config=serve(**keys))
        assert answer["status"] == "failed"
        assert f"{code} " in answer["error"]
        assert not (server.folder / "engine.tar").exists()
    for config in ("", "no/such/file.yaml", "/", "data:text/plain,%00"):
        error = server.build(config=config)["error"]
        assert any(code in error for code in ("E1005", "E1201"))
    assert server.is_ready()


def test_a_cancelled_build_ends_at_once_leaves_no_tar_and_the_next_succeeds(
    server: CogServer, serve: Callable[..., str], hub: HubServer, repository: Repository
) -> None:
    repository.files["tokenizer_config.json"] = b'{"eos_token": "</s>", "model_max_length": 64}'
    repository.commit = "e" * 40
    hold = repository.held["tokenizer_config.json"] = threading.Event()
    asked = repository.asked["tokenizer_config.json"] = threading.Event()
    url = serve(model_id=MODEL_ID)
    place, body = f"{server.url}/predictions/mine", {"input": {"config": url}}
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(httpx.put, place, json=body, timeout=DEADLINE_S)
        assert asked.wait(DEADLINE_S)
        httpx.post(f"{place}/cancel", timeout=DEADLINE_S).raise_for_status()
        assert building.result().json()["status"] == "canceled"
    assert not (server.folder / "engine.tar").exists()
    assert not list((server.folder / "cache" / "builds").iterdir())
    hold.set()
    answer = server.build(config=url)
    assert answer["status"] == "succeeded", answer


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def sparse_safetensors(path: Path, size_mib: int) -> None:
    """One tensor of zeros that takes no room on the disk."""
    size_bytes = size_mib << 20
    header = {"zeros": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size_bytes)


def test_a_large_engine_is_answered_by_its_place_and_takes_no_more_memory(
    server: CogServer, serve: Callable[..., str]
) -> None:
    serve(model_path="model")
    model, engine_tar = server.folder / "model", server.folder / "engine.tar"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes(tiny_model.files()[name])
    peaks = []
    for size_mib in (65, 512):
        sparse_safetensors(model / "model.safetensors", size_mib)
        assert server.build(config="config.yaml")["output"] == engine_tar.as_uri()
        assert engine_tar.stat().st_size > size_mib << 20
        peaks.append(peak_mib(server.pid) + peak_mib(server.worker_pid()))
    engine_tar.unlink()
    assert peaks[1] - peaks[0] < 64
