"""The builder behind the real Cog server: a config goes in, an engine.tar comes out, a token never.

TensorRT-LLM is a stand-in: neither the library nor trtllm-build can be installed here.
"""

import base64
import json
import os
import re
import shutil
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from engine.inspect import verify
from engine.lock import locked
from tests.builder import tiny_model
from tests.builder.cog_server import CogServer, served_configs
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.builder.tensorrt_llm_builds import config
from tests.engine.samples import write_files
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import DEADLINE_S, CogUnderTest, is_running, wait_until
from tests.standins.engine_environment import make_engine_environment
from tests.standins.gpus import make_gpus, without_driver

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("src")


def search_path(folder: Path) -> str:
    """Return where programs are found: the stand-in's nvidia-smi before all others but this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), str(folder / "gpu"), os.environ["PATH"]])


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(folder: Path, hub: HubServer) -> Iterator[CogServer]:
    """Yield a builder in which ``hang`` beside the engine environment makes trtllm-build hang."""
    python = make_engine_environment(folder / "engine-environment")
    make_gpus(folder / "gpu")
    build = python.with_name("trtllm-build")
    switch = f"[ -f {folder}/hang ] && export STANDIN_BUILD=hang\n"
    build.write_text(build.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{switch}"))
    variables = {
        "HF_ENDPOINT": hub.url,
        "COG_TRITON_CACHE": str(folder / "cache"),
        "COG_TRITON_ENGINE_PYTHON": str(python),
        "HF_HOME": str(folder / "hf"),
        "PATH": search_path(folder),
        "TMPDIR": str(folder),
    }
    with CogServer(folder, variables) as cog:
        yield cog


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    with served_configs() as serve:
        yield serve


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


def test_a_wrong_config_gives_its_code_no_tar_and_a_server_that_goes_on(
    server: CogServer, serve: Callable[..., str]
) -> None:
    wrong: dict[str, dict[str, object]] = {
        "E1202": {"model_idd": MODEL_ID},
        "E1206": {"model_id": "acme/none"},
    }
    for code, keys in wrong.items():
        (server.folder / "engine.tar").write_bytes(b"of an earlier build")
        answer = server.build(config=serve(**keys))
        assert answer["status"] == "failed"
        assert f"{code} " in answer["error"]
        assert not (server.folder / "engine.tar").exists()
    for given in ("", "no/such/file.yaml", "/", "data:text/plain,%00"):
        error = server.build(config=given)["error"]
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
    server: CogServer,
) -> None:
    (server.folder / "config.yaml").write_text("model_path: model")
    model, engine_tar = server.folder / "model", server.folder / "engine.tar"
    write_files(model, tiny_model.files())
    peaks = []
    for size_mib in (65, 512):
        sparse_safetensors(model / "model.safetensors", size_mib)
        assert server.build(config="config.yaml")["output"] == engine_tar.as_uri()
        assert engine_tar.stat().st_size > size_mib << 20
        peaks.append(peak_mib(server.pid) + peak_mib(server.worker_pid()))
    engine_tar.unlink()
    assert peaks[1] - peaks[0] < 64


@without_driver
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.needs_mpirun)])
def test_what_was_built_from_a_config_url_with_live_logs_is_served_as_streamed_predictions(
    server: CogServer, serve: Callable[..., str], tmp_path: Path, world_size: int
) -> None:
    """Go the whole way: builder's Cog, engine.tar, runner's Cog, Triton, for two ranks a real mpirun."""
    answer = server.build(config=serve(**config({"tp_size": world_size})))
    assert answer["status"] == "succeeded", answer
    manifest = verify(server.folder / "engine.tar")
    assert manifest.world_size == world_size
    assert {f"rank{rank}.engine" for rank in range(world_size)} < set(manifest.files)
    logs = answer["logs"]
    assert re.search(r"\[5/8\] build: \S+trtllm-build --checkpoint_dir checkpoint ", logs)
    assert re.search(r"build 0:\d\d \| \[TensorRT-LLM\] TensorRT-LLM version: 0\.16\.0", logs)
    assert re.search(r"build: done in 0:\d\d", logs)
    make_gpus(server.folder / "gpu", count=2)
    tokenizer = Tokenizer.from_str(tiny_model.tokenizer_json().decode())
    engine_tar = shutil.copy(server.folder / "engine.tar", tmp_path)
    model = PacedModel(tmp_path / "none", Path(engine_tar), tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", search_path(server.folder))
        python = str(server.folder / "engine-environment" / "bin" / "python")
        runner = CogUnderTest(model, tmp_path, COG_TRITON_ENGINE_PYTHON=python, WORLD_SIZE=str(world_size))
    try:
        prompt = "The whale swam past"
        inputs = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
        headers = {"Accept": "text/event-stream"}
        with runner.client.stream(
            "POST", "/predictions", json={"input": inputs}, headers=headers
        ) as response:
            lines = list(response.iter_lines())
        assert any(line.startswith("event: output") for line in lines)
        ids = tokenizer.encode(prompt).ids
        repeated = tokenizer.decode([ids[index % len(ids)] for index in range(20)])
        assert "".join(runner.predict(**inputs)["output"]) == repeated
    finally:
        runner.close()


@without_driver
def test_cancelling_ends_every_process_leaves_no_tar_and_another_build_is_refused_meanwhile(
    server: CogServer, serve: Callable[..., str]
) -> None:
    (server.folder / "hang").write_bytes(b"")
    url = serve(**config(build={"max_batch_size": 7}))
    started = httpx.post(
        f"{server.url}/predictions",
        json={"input": {"config": url}},
        headers={"Prefer": "respond-async"},
        timeout=DEADLINE_S,
    ).json()
    worker = wait_until(lambda: hanging_worker(server))
    assert is_running(worker)

    busy = httpx.post(f"{server.url}/predictions", json={"input": {"config": url}}, timeout=DEADLINE_S)
    assert busy.status_code == httpx.codes.CONFLICT

    httpx.post(f"{server.url}/predictions/{started['id']}/cancel", timeout=DEADLINE_S).raise_for_status()
    wait_until(lambda: not is_running(worker))
    wait_until(lambda: not list((server.folder / "cache" / "builds").iterdir()))
    wait_until(server.is_ready)
    assert not (server.folder / "engine.tar").exists()
    assert not list(server.folder.glob(".engine.tar*"))
    (server.folder / "hang").unlink()
    again = server.build(config=url)
    assert again["status"] == "succeeded", again
    assert "checkpoint: reused from" in again["logs"]


def test_a_second_builder_in_the_same_place_is_told_that_it_is_busy(
    server: CogServer, serve: Callable[..., str]
) -> None:
    with locked(server.folder / ".engine.tar.lock"):
        answer = server.build(config=serve(model_id=MODEL_ID))
    assert "E2311 BuilderBusy" in answer["error"]


def hanging_worker(server: CogServer) -> int:
    found = re.findall(r"hanging, worker (\d+)", "\n".join(server.log))
    return int(found[-1]) if found else 0
