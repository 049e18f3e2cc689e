"""``cog-triton doctor`` on this machine, well and with something missing."""

from __future__ import annotations

import socket

import pytest

from cli.main import main

PORTS = ("PORT", "TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT", "OPENAI_PORT")


@pytest.fixture(autouse=True)
def ports(free_ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port in zip(PORTS, free_ports, strict=False):
        monkeypatch.setenv(name, str(port))
    monkeypatch.setenv("TRITON_HOST", "127.0.0.1")
    monkeypatch.setenv("OPENAI_HOST", "127.0.0.1")


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines() if ": " in line]
    return {name: text for name, _, text in lines}


def test_an_installation_that_works_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = verdicts(capsys)
    assert [name.split(maxsplit=1)[0] for name in found] == ["ok"] * len(found)
    assert "cog 0." in found["ok    serving environment"]
    assert "transformers" in found["ok    engine environment"]
    assert found["ok    Triton"].endswith("tritonserver runs")
    assert ".so" in found["ok    libpython"]


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


def test_a_setting_that_is_wrong_is_told_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_HTTP_PORT", "abc")
    assert main(["doctor"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("E1006 InvalidSetting: TRITON_HTTP_PORT must be a port")
