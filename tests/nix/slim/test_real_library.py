"""A published library (nvJPEG, 5 MB): slimmed, cuobjdump still reads it and the loader still loads it.

The first run needs a package index; the two wheels then stay in pytest's cache.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from slim.cli import main

pytestmark = pytest.mark.servers  # it needs a package index

NVJPEG = "nvidia-nvjpeg-cu12==12.4.0.76"
CUOBJDUMP = "nvidia-cuda-cuobjdump==13.5.37"
SHA256 = {
    NVJPEG: "3888f10b32fbd58e80166c48e01073732d752fa5f167b7cb5b9615f1c6375a20",
    CUOBJDUMP: "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58",
}
CONTAINERS = 11


@pytest.fixture(scope="session")
def wheels(pytestconfig: pytest.Config) -> Path:
    """Return a folder with what both wheels hold."""
    folder = pytestconfig.cache.mkdir("slim-wheels")
    for requirement, sha256 in SHA256.items():
        if not (folder / sha256).exists():
            _download(requirement, folder)
    return folder


def _download(requirement: str, folder: Path) -> None:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--platform", "manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{requirement} can't be had here: {done.stderr.strip().splitlines()[-1:]}")
    wheel = next(folder.glob(f"{requirement.partition('==')[0].replace('-', '_')}-*.whl"))
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256[requirement]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.rename(folder / SHA256[requirement])


@pytest.fixture
def library(wheels: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(next(wheels.rglob("libnvjpeg.so.12")), tmp_path))


@pytest.fixture(scope="session")
def cuobjdump(wheels: Path) -> Path:
    program = next(wheels.rglob("bin/cuobjdump"))
    program.chmod(0o755)
    return program


def listed(cuobjdump: Path, library: Path) -> Counter[str]:
    """Return how many images of each architecture and kind NVIDIA's program finds, such as `sm_86.cubin`."""
    command = [str(cuobjdump), "--list-elf", "--list-ptx", str(library)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Counter(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))$", output, re.MULTILINE))


def extracted(cuobjdump: Path, library: Path, architecture: str, folder: Path) -> list[bytes]:
    folder.mkdir()
    command = [str(cuobjdump), "--extract-elf", f".{architecture}.", str(library)]
    subprocess.run(command, capture_output=True, cwd=folder, check=True)
    files = sorted(folder.iterdir(), key=lambda file: int(file.name.split(".")[-3]))
    return [file.read_bytes() for file in files]


@pytest.mark.parametrize(("sm", "left"), [(86, {"sm_86.cubin": 11}), (62, {}), (121, {"sm_121.cubin": 11})])
def test_cuobjdump_finds_what_the_rule_keeps(
    library: Path, cuobjdump: Path, sm: int, left: dict[str, int]
) -> None:
    before = listed(cuobjdump, library)
    assert before["sm_86.cubin"] == before["sm_50.cubin"] == CONTAINERS
    assert before["sm_121.ptx"] == CONTAINERS - 1
    assert main(["--sm", str(sm), str(library)]) == (0 if left else 3)
    assert listed(cuobjdump, library) == (left or before)


def test_the_code_that_stays_is_the_code_that_was(library: Path, cuobjdump: Path, tmp_path: Path) -> None:
    before = extracted(cuobjdump, library, "sm_86", tmp_path / "before")
    assert main(["--sm", "86", str(library)]) == 0
    after = extracted(cuobjdump, library, "sm_86", tmp_path / "after")
    assert len(after) == CONTAINERS
    assert after == before


def test_the_library_still_loads(library: Path) -> None:
    assert main(["--sm", "86", str(library)]) == 0
    major = ctypes.c_int(-1)
    assert ctypes.CDLL(str(library)).nvjpegGetProperty(0, ctypes.byref(major)) == 0
    assert major.value == 12
