"""TensorRT-LLM builds behind the real Cog server, with stand-ins: live logs, cancelling, one at a time."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from tests.builder.test_program import is_running, wait_for
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import DEADLINE_S, CogUnderTest
from tests.standins.engine_environment import make_engine_environment
from tests.standins.gpus import make_gpus, without_driver

pytestmark = [
    without_driver,
    pytest.mark.servers,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("src")


def search_path(folder: Path) -> str:
    """Return where programs are found: the stand-in's nvidia-smi before all others but this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), str(folder / "gpu"), os.environ["PATH"]])


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer()
    server.repositories[MODEL_ID] = Repository(tiny_model.files(), lfs={"model.safetensors"})
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(folder: Path, hub: HubServer) -> Iterator[CogServer]:
    """Yield a builder in which ``hang`` beside the engine environment makes trtllm-build hang."""
    python = make_engine_environment(folder / "engine-environment")
    make_gpus(folder / "gpu")
    build = python.with_name("trtllm-build")
    switch = f"[ -f {folder}/hang ] && export STANDIN_BUILD=hang\n"
    build.write_text(build.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{switch}"))
    cog = CogServer(
        folder,
        {
            "HF_ENDPOINT": hub.url,
            "COG_TRITON_CACHE": str(folder / "cache"),
            "COG_TRITON_ENGINE_PYTHON": str(python),
            "HF_HOME": str(folder / "hf"),
            "PATH": search_path(folder),
        },
    )
    yield cog
    cog.close()


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Callable[..., str]]:
    """Write a config and serve it on loopback: its keys -> its URL."""
    with served_configs(folder) as serve:
        yield serve


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.needs_mpirun)])
def test_what_was_built_from_a_config_url_with_live_logs_is_served_as_streamed_predictions(
    server: CogServer, serve: Callable[[dict[str, Any]], str], tmp_path: Path, world_size: int
) -> None:
    """Go the whole way: builder's Cog, engine.tar, runner's Cog, Triton, for two ranks a real mpirun."""
    answer = server.build(config=serve(config({"tp_size": world_size})))
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


def test_cancelling_ends_every_process_leaves_no_tar_and_another_build_is_refused_meanwhile(
    server: CogServer, serve: Callable[[dict[str, Any]], str]
) -> None:
    (server.folder / "hang").write_bytes(b"")
    url = serve(config(build={"max_batch_size": 7}))
    started = httpx.post(
        f"{server.url}/predictions",
        json={"input": {"config": url}},
        headers={"Prefer": "respond-async"},
        timeout=DEADLINE_S,
    ).json()
    wait_for(lambda: hanging_worker(server) is not None, timeout_s=300)
    worker = hanging_worker(server)
    assert worker is not None
    assert is_running(worker)

    busy = httpx.post(f"{server.url}/predictions", json={"input": {"config": url}}, timeout=DEADLINE_S)
    assert busy.status_code == httpx.codes.CONFLICT

    httpx.post(f"{server.url}/predictions/{started['id']}/cancel", timeout=DEADLINE_S).raise_for_status()
    wait_for(lambda: not is_running(worker))
    wait_for(lambda: not list((server.folder / "cache" / "builds").iterdir()))
    wait_for(server.is_ready)
    assert not (server.folder / "engine.tar").exists()
    assert not list(server.folder.glob(".engine.tar*"))
    (server.folder / "hang").unlink()
    again = server.build(config=url)
    assert again["status"] == "succeeded", again
    assert "checkpoint: reused from" in again["logs"]


def test_a_second_builder_in_the_same_place_is_told_that_it_is_busy(
    server: CogServer, serve: Callable[[dict[str, Any]], str]
) -> None:
    path = server.folder / ".engine.tar.lock"
    with locked(path):
        answer = server.build(config=serve(config()))
    assert "E2311 BuilderBusy" in answer["error"]


def hanging_worker(server: CogServer) -> int | None:
    found = [match for line in server.log if (match := re.search(r"hanging, worker (\d+)", line))]
    return int(found[-1][1]) if found else None
