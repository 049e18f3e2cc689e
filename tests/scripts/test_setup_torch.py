"""The set-up finds a build of torch, and makes the environment of vLLM where there is a GPU."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from errors.settings import InvalidSetting, MissingRequirement
from scripts import environment, machine, setup_environment
from tests.scripts.checkout import Checkout, installs


def test_another_build_of_torch_renews_the_engines_environment(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_environment.set_up()
    checkout.calls()
    monkeypatch.setenv("TORCH", "cuda")
    setup_environment.set_up()
    (install,) = installs(checkout.calls())
    assert "requirements/torch-cuda.txt" in install
    assert "--require-hashes" in install


def test_torch_comes_from_its_own_index_only_if_pips_have_none(checkout: Checkout) -> None:
    checkout.refuse(
        "pip download .*torch-cpu.txt index=$", "ERROR: No matching distribution found for torch==2.13.0+cpu"
    )
    assert setup_environment.set_up() == []
    first, second = (call for call in checkout.calls() if "pip download" in call and "torch-cpu" in call)
    assert first.endswith("--require-hashes -r /requirements/torch-cpu.txt index=")
    assert second == first + setup_environment.TORCH_CPU_INDEX


def test_a_wrong_torch_is_not_answered_by_looking_elsewhere(checkout: Checkout) -> None:
    checkout.refuse(
        "torch-cpu.txt", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    )
    with pytest.raises(environment.InstallationFailed):
        setup_environment.set_up()
    assert len([call for call in checkout.calls() if "torch-cpu" in call]) == 1


def test_a_torch_that_nobody_has_is_an_error_that_says_what_to_do(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CPU_INDEX", "http://user:secret@mirror.example/simple")
    checkout.refuse("torch-cpu.txt", "ERROR: No matching distribution found for torch==2.13.0+cpu")
    with pytest.raises(
        MissingRequirement, match=r"E1008 .*torch's CPU build for Python 3\.11 was not found"
    ) as caught:
        setup_environment.set_up()
    assert "set TORCH_CPU_INDEX" in str(caught.value)
    assert "`make setup PYTHON=python3.12`" in str(caught.value)
    assert checkout.calls()[-1].endswith("index=http://user:secret@mirror.example/simple")
    assert "secret" not in str(caught.value) + environment.LOG.read_text()


def test_without_a_known_hash_the_indexs_own_is_relied_on_and_that_is_said(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_environment, "has_torch_hash", lambda minor_version: False)
    setup_environment.set_up()
    (torch,) = (call for call in installs(checkout.calls()) if "torch-cpu" in call)
    assert "-r /requirements/torch-cpu.in" in torch
    assert "--require-hashes" not in torch
    assert "torch-cpu.txt has no hash for Python 3.11" in capsys.readouterr().out


def test_an_unknown_build_of_torch_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidSetting, match=r"E1006 .*TORCH must be cpu or cuda, but is 'rocm'"):
        setup_environment.torch_requirements("rocm")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)


@pytest.mark.usefixtures("gpu")
def test_vllms_environment_is_made_of_its_lock_once(checkout: Checkout) -> None:
    assert setup_environment.set_up_vllm() == []
    (install,) = installs(checkout.calls())
    assert "--require-hashes" in install
    assert "requirements/vllm.txt" in install
    assert "requirements/test.txt" in install
    assert setup_environment.set_up_vllm() == []
    assert checkout.calls() == []


@pytest.mark.usefixtures("gpu")
def test_cuda_is_not_downloaded_a_second_time_for_vllm_and_what_is_there_stays(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH")
    assert setup_environment.set_up_vllm_serving() == []
    asked = "\n".join(installs(checkout.calls()))
    assert "torch-cpu.txt" in asked
    assert "vllm.txt" in asked
    assert setup_environment.set_up(tests=False) == []
    assert checkout.calls() == []
    shutil.rmtree(checkout.root / ".venv-vllm")
    setup_environment.set_up(tests=False)
    assert "torch-cuda.txt" in "\n".join(installs(checkout.calls()))
    (checkout.root / ".venv-engine/lib/python3.11/site-packages/torch-2.13.0.dist-info").mkdir()
    setup_environment.set_up_vllm_serving()
    assert all("torch" not in call for call in checkout.calls())


@pytest.mark.usefixtures("gpu")
def test_an_environment_of_the_users_gets_what_tests_need_and_no_other_is_made(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = checkout.root / ".venv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n')
    uv.chmod(0o755)
    monkeypatch.setenv("VLLM_PYTHON", sys.executable)
    assert setup_environment.set_up_vllm() == []
    asked = (tmp_path / "asked").read_text()
    assert f"--python {sys.executable} --require-hashes" in asked
    assert "requirements/test.txt" in asked
    assert "vllm.txt" not in asked
    assert not (checkout.root / ".venv-vllm").exists()


@pytest.mark.usefixtures("gpu")
def test_a_python_of_the_users_that_is_not_there_is_named(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(InvalidSetting, match=r"VLLM_PYTHON.*/nowhere/python"):
        setup_environment.set_up_vllm()
    assert checkout.calls() == []


def test_without_a_gpu_nothing_is_installed_for_it(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    (missing,) = setup_environment.set_up_vllm()
    assert "an NVIDIA GPU was not found" in str(missing)
    assert checkout.calls() == []
