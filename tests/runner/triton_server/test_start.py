"""Why Triton can't be started is told by a code, and whatever happens nothing is left behind."""

import ctypes.util
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from engine.machine.processes import name_of
from engine.machine.root import SOURCE_ROOT
from errors.coded_error import CodedError
from errors.engine_tar import EngineNotFound
from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting, MissingRequirement, PortInUse
from errors.triton import StartFailed
from runner.service import Service
from runner.settings.settings import load_settings
from runner.triton_server.install import install_triton
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import (
    ENSEMBLE,
    HOST,
    TritonUnderTest,
    engine_pids,
    free_ports,
    is_running,
    shared_memory,
    triton_environment,
    triton_pids,
    wait_until,
)

SERVE = """
import asyncio
from runner.service import Service
from runner.settings.settings import load_settings

async def main():
    await Service(load_settings()).open()
    print("open", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def config(folder: Path, **models: object) -> dict[str, str]:
    """Return the environment that names a server YAML with these arguments of Triton's models."""
    path = folder / "server.yaml"
    server = {model: {"args": arguments} for model, arguments in models.items()}
    path.write_text(yaml.safe_dump({"instantiate": {"server": server}}))
    return {"COG_TRITON_CONFIG": str(path)}


@pytest.mark.servers
def test_the_cause_of_a_failed_start_keeps_its_code(paced: PacedModel, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="maximum batch size") as raised:
        TritonUnderTest(paced, tmp_path, **config(tmp_path, tensorrt_llm={"triton_max_batch_size": 8}))
    assert "\n" not in str(raised.value)
    assert not str(raised.value).endswith("|")


def service(folder: Path, *, is_broken: bool = False, **settings: str) -> tuple[Service, int]:
    """Return a service that has not started, and its HTTP port."""
    model = make_paced_model(folder / "model", 200)
    if is_broken:
        pace = model.directory / "paced.json"
        pace.write_bytes(b"x" * pace.stat().st_size)
    ports = free_ports(3)
    environment = triton_environment(*ports) | {"ENGINE_DIR": str(model.directory), "HOME": str(folder)}
    return Service(load_settings(environment | settings), lambda line: None), ports[0]


def check_nothing_is_left(port: int) -> None:
    assert triton_pids(port) == []
    wait_until(lambda: engine_pids(port) == [])
    assert shared_memory(port) == []


@pytest.mark.servers
async def test_an_engine_that_can_not_be_loaded_ends_the_start_with_its_code_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    starting, port = service(tmp_path, is_broken=True)
    with pytest.raises(EngineStartFailed, match="E2108"):
        await starting.open()
    check_nothing_is_left(port)


@pytest.mark.servers
def test_a_stub_that_is_killed_while_it_starts_costs_a_second_start(
    paced: PacedModel, tmp_path: Path
) -> None:
    """Before its first message Triton would wait for it for ever, and after that end with an error."""
    (port,) = free_ports(1)
    killed: list[int] = []

    def kill_first_stub() -> None:
        while not killed:
            for pid in triton_pids(port):
                if name_of(pid) == "triton_python_b":
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return

    killer = threading.Thread(target=kill_first_stub, daemon=True)
    killer.start()
    with closing(TritonUnderTest(paced, tmp_path, TRITON_HTTP_PORT=str(port))) as server:
        assert killed
        assert any("it is started once more" in line for line in server.log)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("error", "says", "environment"),
    [
        (InvalidSetting, "192.0.2.1", {"TRITON_HOST": "192.0.2.1"}),
        (InvalidSetting, "no.such.host", {"TRITON_HOST": "no.such.host.invalid"}),
        (EngineNotFound, "E1301", {"ENGINE_DIR": "/nowhere"}),
        (InvalidSetting, "WORLD_SIZE must be 1", {"WORLD_SIZE": "2"}),
        *(
            (PortInUse, f"Port [0-9]+ for Triton's .* set {variable} to a free port", {variable: ""})
            for variable in ("TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT")
        ),
    ],
)
def test_what_is_wrong_is_told_before_triton_starts(
    paced: PacedModel, tmp_path: Path, error: type[CodedError], says: str, environment: dict[str, str]
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        environment = {name: value or port for name, value in environment.items()}
        with pytest.raises(error, match=says):
            TritonUnderTest(paced, tmp_path, **environment)


def test_without_pytriton_is_e1008(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirement, match="E1008 MissingRequirement: nvidia-pytriton"):
        install_triton(tmp_path, None)


def test_without_a_shared_libpython_is_e1008_naming_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(MissingRequirement, match=f"apt-get install libpython{version}"):
        install_triton(tmp_path, None)


def test_without_a_stub_for_this_python_is_e1008_naming_those_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newer = SimpleNamespace(version_info=SimpleNamespace(major=3, minor=99))
    monkeypatch.setattr("runner.triton_server.install.sys", newer)
    with pytest.raises(MissingRequirement, match=r"Python 3\.99 .* use Python 3\.10, 3\.11 or 3\.12"):
        install_triton(tmp_path, None)


def test_more_backends_are_laid_beside_ours(tmp_path: Path) -> None:
    more = tmp_path / "more"
    for name in ("tensorrtllm", "python"):
        (more / name).mkdir(parents=True)
    for _ in range(2):
        install = install_triton(tmp_path / "runtime", more)
    assert (install.backend_dir / "tensorrtllm").resolve() == more / "tensorrtllm"
    assert (install.backend_dir / "python" / "triton_python_backend_stub").is_file()


@pytest.mark.servers
def test_a_killed_parent_takes_triton_and_the_worker_with_it(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 200)
    ports = free_ports(3)
    environment = {**os.environ, **triton_environment(*ports), "ENGINE_DIR": str(model.directory)}
    environment |= {"PYTHONPATH": str(SOURCE_ROOT), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout.readline() == b"open\n"
        pids = [*triton_pids(ports[0]), *engine_pids(ports[0])]
        assert len(pids) == 5
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)))
    assert shared_memory(ports[0]) == []


@pytest.mark.servers
def test_what_triton_shares_has_no_name_and_grows_and_max_tokens_are_signed_where_the_config_says_so(
    paced: PacedModel, tmp_path: Path
) -> None:
    signed = config(tmp_path, preprocessing={"max_tokens_data_type": "TYPE_INT32"})
    with closing(TritonUnderTest(paced, tmp_path, **signed)) as server:
        answer = server.post(f"{ENSEMBLE}/generate", {"text_input": "What is", "max_tokens": 5})
        assert answer.json()["text_output"] == paced.expected_text("What is", 5)
        negative = server.post(f"{ENSEMBLE}/generate", {"text_input": "What is", "max_tokens": -5})
        assert "E1103" in negative.text
        assert shared_memory(server.http_port) == []
        before = _shared_bytes(server)
        body = {"text_input": "word " * 500_000, "max_tokens": 5}
        assert "E1002 PromptTooLong" in server.post(f"{ENSEMBLE}/generate", body).text
        assert _shared_bytes(server) > before >= 3 << 20


def _shared_bytes(server: TritonUnderTest) -> int:
    """Return the memory that Triton shares with its stubs, by the largest mapping of each region."""
    assert server.service.stack.triton.pid is not None
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{server.service.stack.triton.pid}/maps").read_text().splitlines():
        if f"_{server.http_port}_" in line:
            span, _, _, _, inode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            sizes[inode] = max(sizes.get(inode, 0), last - first)
    return sum(sizes.values())
