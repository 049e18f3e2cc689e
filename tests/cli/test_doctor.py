"""``cog-triton doctor`` on this machine, well and with something missing."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli import doctor_machine
from cli.main import main
from errors.settings import MissingRequirement
from runner.settings.settings import load_settings
from tests.runner.paced_engine import make_paced_model
from tests.runner.tensorrt_llm_engine import make_compiled_model
from tests.standins.gpus import has_driver, make_gpus

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def listeners(ports: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ports, "TRITON_HOST": "127.0.0.1", "OPENAI_HOST": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines() if ": " in line]
    return {name: text for name, _, text in lines}


def test_an_installation_that_works_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = verdicts(capsys)
    assert re.search(r"\d+ CPUs, \d+ GiB.*glibc 2\.\d+", found["ok    machine"])
    assert (
        "for CUDA up to" in found["ok    driver"] if has_driver() else found["ok    GPU"].startswith("none;")
    )
    assert [name.split(maxsplit=1)[0] for name in found] == ["ok"] * len(found)
    assert "cog 0." in found["ok    serving environment"]
    assert "transformers" in found["ok    engine environment"]
    assert found["ok    Triton"].endswith("tritonserver runs")


def test_ports_of_a_runner_of_ours_are_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = "import socket, sys; at = socket.create_server(('127.0.0.1', 0)); print(at.getsockname()[1])"
    program = f"{listening}; sys.stdout.flush(); sys.stdin.read()"
    for arguments, verdict in (("-m runner.api", "ok"), ("-m http.server", "FAIL")):
        command = [sys.executable, "-c", program, *arguments.split()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            port = process.stdout.readline().strip()
            monkeypatch.setenv("OPENAI_PORT", port)
            main(["doctor"])
            process.communicate()
        (line,) = [line for line in capsys.readouterr().out.splitlines() if " ports: " in line]
        assert line.startswith(f"{verdict} ")
        assert (f"used by your running runner: {port}" in line) == (verdict == "ok")


def test_what_is_missing_is_told_with_its_remedy_and_the_rest_is_checked_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", "/bin/true")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("TRITON_GRPC_PORT", str(taken.getsockname()[1]))
        assert main(["doctor", "--perf"]) == 2
    found = verdicts(capsys)
    assert found["FAIL  ports"].startswith("E1007 PortInUse")
    assert "TRITON_GRPC_PORT" in found["FAIL  ports"]
    assert found["FAIL  engine environment"].endswith("or name a Python with COG_TRITON_ENGINE_PYTHON.")
    assert "ok    disk" in found


def test_an_engine_is_checked_against_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced = make_paced_model(tmp_path / "paced", 100)
    for source in (paced.tar, paced.directory):
        main(["doctor", str(source)])
        assert "can run here" in verdicts(capsys)["ok    engine"]
    monkeypatch.setenv("PATH", str(tmp_path))  # Without nvidia-smi.
    compiled = make_compiled_model(tmp_path / "compiled")
    assert main(["doctor", str(compiled.directory)]) == 2
    assert verdicts(capsys)["FAIL  engine"].startswith(("E1323", "E1322", "E1325"))
    assert main(["doctor", str(tmp_path / "nowhere.tar")]) == 2
    assert "E13" in verdicts(capsys)["FAIL  engine"]


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_gpus_without_a_driver_library_are_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gpus(tmp_path, sm=90)
    monkeypatch.setenv("COG_TRITON_IMAGE", "cog-triton-runner-vllm-90")
    smi = tmp_path / "nvidia-smi"
    smi.write_text(smi.read_text().replace("-L)", "*driver_version*) echo 550.1 ;;\n-L)"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["doctor"]) == 2
    found = verdicts(capsys)
    assert "--gpus all" in found["FAIL  driver"]
    assert re.search(r"SM 90, 2[34]\.\d GiB of 2[34]\.\d GiB free", found["ok    GPU"])
    images = [f"cog-triton-runner{engine}-90" for engine in ("", "-tensorrt-llm-pytorch", "-vllm")]
    assert found["ok    GPU"].endswith(f"image {' or '.join(images)}")
    make_gpus(tmp_path, sm=89)
    assert main(["doctor"]) == 2
    assert verdicts(capsys)["FAIL  GPU"].endswith("is SM 89: use cog-triton-runner-vllm-89.")


def test_a_torch_for_a_newer_cuda_than_the_drivers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "_cuda_version", lambda: (12, 4))
    monkeypatch.setattr(doctor_machine, "nvidia_smi", lambda query: [["550.54"]])
    torch = "2.9.0+cu128"
    monkeypatch.setattr(doctor_machine, "installed_version", lambda python: lambda name: torch)
    assert doctor_machine.check_driver(load_settings()) == "550.54, for CUDA up to 12.4"
    torch = "2.13.0+cu130"
    with pytest.raises(MissingRequirement, match=r"a driver for CUDA 13.*550\.54 is for CUDA 12\.4"):
        doctor_machine.check_driver(load_settings())
