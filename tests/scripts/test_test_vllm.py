"""The pinned vLLM decides what `make test-vllm` returns; another release is told of, whatever it lacks."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from runner.engines.vllm.interface import PINNED_VERSION
from scripts import environment, machine, setup_environment, test_vllm
from scripts.environment import InstallationFailed

LACKS = "E   errors.settings.MissingRequirement: E1008 vllm.envs in vLLM 9.9 is missing"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    def run(newest: str, failing: tuple[str, ...] = ()) -> int:
        def answer(what: str, *command: str, **variables: str) -> str:
            if what in failing:
                raise InstallationFailed(what, "")
            return f"vllm=={newest}\n" if what == "uv pip compile" else ""

        def test(command: list[str], **options: object) -> CompletedProcess[str]:
            is_failing = any(each in " ".join(command) for each in failing)
            return CompletedProcess(command, int(is_failing), LACKS, "")

        monkeypatch.setattr(environment, "run", answer)
        monkeypatch.setattr(environment, "find_uv", lambda: "uv")
        monkeypatch.setattr(environment, "pip_settings", dict)
        monkeypatch.setattr(setup_environment, "main", lambda argument: 0)
        monkeypatch.setattr(machine, "PYTHON_VERSION", "3.11")
        pinned, other = (tmp_path / name for name in (".venv-vllm-cpu", ".venv-vllm-other"))
        pinned.mkdir(exist_ok=True)
        monkeypatch.setattr(test_vllm, "_PINNED", pinned)
        monkeypatch.setattr(test_vllm, "_OTHER", other)
        monkeypatch.setattr(test_vllm.subprocess, "run", test)
        return test_vllm.main()

    return run


@pytest.mark.parametrize(
    ("newest", "failing", "status", "told"),
    [
        (PINNED_VERSION, (), 0, f"vLLM {PINNED_VERSION} is the newest release."),
        ("9.9", (), 0, "vLLM 9.9 has what the adapter uses."),
        ("9.9", (".venv-vllm-other",), 0, "WARNING: vLLM 9.9 is not what the adapter needs: E1008 "),
        ("9.9", ("uv pip compile",), 0, "were not tested: uv pip compile failed."),
        (PINNED_VERSION, (".venv-vllm-cpu",), 1, f"vLLM {PINNED_VERSION} is the newest release."),
        (PINNED_VERSION, ("test_real_core.py",), 1, f"vLLM {PINNED_VERSION} is the newest release."),
    ],
)
def test_the_pinned_version_decides_and_another_is_told_of(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    newest: str,
    failing: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    assert run(newest, failing) == status
    said = capsys.readouterr().out
    assert told in said
    assert ("\nWARNING: vLLM " in said) == (told.startswith("WARNING"))


def test_a_python_that_is_too_old_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "PYTHON_VERSION", "3.10")
    assert test_vllm.main() == 0
    assert capsys.readouterr().out == "vLLM needs Python 3.11, and .venv has 3.10: its tests are left out.\n"
