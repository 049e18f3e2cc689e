"""Triton starts while its engine is still being fetched; whatever becomes of one of them, both end well."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from errors.engine_tar import EngineFileDamaged
from errors.settings import PortInUse
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.service import Service
from runner.settings.settings import load_settings
from tests.engine.tar_server import Fault, TarServer
from tests.runner.engines.server.supervised import next_look
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import (
    DEADLINE_S,
    HOST,
    free_ports,
    shared_memory,
    triton_environment,
    triton_pids,
    wait_until,
)

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """More than the first answer brings, so that the rest can be held back."""
    folder = tmp_path_factory.mktemp("arrival")
    directory = make_paced_model(folder / "model", 0).directory
    (directory / "engine_manifest.json").unlink(missing_ok=True)
    (directory / "zz-last.bin").write_bytes(bytes(2 << 20))
    pack(directory, EngineFacts(engine_kind="paced"), folder / "engine.tar")
    return (folder / "engine.tar").read_bytes()


@pytest.fixture
def server(tar: bytes) -> Iterator[TarServer]:
    with TarServer(tar) as server:
        yield server


def _hold(server: TarServer) -> threading.Event:
    """Have the server answer the first request, and the others once the event is set."""
    go = threading.Event()
    server.fault = lambda request: Fault() if request.number == 0 or go.wait(600) else None
    return go


def _service(server: TarServer, folder: Path, ports: list[int], **more: str) -> Service:
    environment = triton_environment(*ports) | {"COG_WEIGHTS": server.url, "HOME": str(folder), **more}
    return Service(load_settings(environment), lambda line: None)


async def test_triton_runs_before_the_engine_is_there_and_its_time_to_start_counts_from_then(
    server: TarServer, tmp_path: Path
) -> None:
    go, ports = _hold(server), free_ports(3)
    service = _service(server, tmp_path, ports, TRITON_START_TIMEOUT="1")
    opening = asyncio.create_task(service.open())
    try:
        await asyncio.to_thread(wait_until, lambda: triton_pids(ports[0]))
        await asyncio.sleep(2)
        assert not opening.done()
        for process in service.stack.processes:
            process._start_timeout_s = DEADLINE_S
            await next_look(process)
        go.set()
        await opening
        request = GenerationRequest("hi there", 5, 0, (), Sampling(temperature=0))
        assert "".join([text async for text in service.generate(request).text()])
    finally:
        await service.close()
    assert triton_pids(ports[0]) == []


async def test_an_engine_that_turns_out_damaged_ends_triton_at_once(
    server: TarServer, tar: bytes, tmp_path: Path
) -> None:
    server.content = tar[: -(1 << 20)] + b"\1" + tar[-(1 << 20) + 1 :]
    go, ports = _hold(server), free_ports(3)
    opening = asyncio.create_task(_service(server, tmp_path, ports).open())
    await asyncio.to_thread(wait_until, lambda: triton_pids(ports[0]))
    go.set()
    with pytest.raises(EngineFileDamaged):
        await opening
    assert triton_pids(ports[0]) == []
    assert shared_memory(ports[0]) == []
    wait_until(lambda: not list((tmp_path / ".cache" / "cog-triton" / "engines").iterdir()))


async def test_a_triton_that_can_not_start_ends_the_download(server: TarServer, tmp_path: Path) -> None:
    ports = free_ports(3)
    with socket.create_server((HOST, 0)) as taken:
        ports[0] = taken.getsockname()[1]
        threading.Timer(1.0, _hold(server).set).start()
        with pytest.raises(PortInUse):
            await _service(server, tmp_path, ports).open()
