"""What docs/clients.md shows to type, run as it stands there, on the ports of the runner under test."""

import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, Runner
from tests.clients.javascript.install import JAVASCRIPT, MODULES, NODE

PAGE = ROOT / "docs" / "clients.md"
PATH = os.pathsep.join([str(Path(sys.executable).parent), str(NODE), os.environ["PATH"]])
_LIBRARIES = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_runtime" / "lib"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ["bash", "-euc"]


@dataclass(frozen=True)
class Block:
    section: str
    language: str
    text: str


def all_blocks() -> list[Block]:
    _, *parts = _SECTION.split(PAGE.read_text())
    return [
        Block(section, *block)
        for section, text in zip(parts[::2], parts[1::2], strict=True)
        for block in _BLOCK.findall(text)
    ]


def blocks(section: str) -> list[Block]:
    return [block for block in all_blocks() if block.section == section]


def run_block(block: Block, runner: Runner, folder: Path) -> str:
    """Run it to its end, which must be a success; what it printed. Files it makes are in ``folder``."""
    text = runner.with_its_ports(block.text)
    match block.language:
        case "sh":
            return run(folder, *_SHELL, text)
        case "python":
            return run(folder, sys.executable, "-c", text)
        case "js":
            return run(needed_javascript(), "node", "--input-type=module", "--eval", text)
        case _:
            raise AssertionError(block)


def needed_javascript() -> Path:
    """Return the folder of npm's clients. Skip the test without them."""
    if not MODULES.is_dir():
        pytest.skip("npm's clients are not installed: `make test-clients` could not reach npm's registry")
    return JAVASCRIPT


def run(folder: Path, *command: str, timeout_s: float = 500.0) -> str:
    """Run it in ``folder`` as if that were the repository; its end must be a success."""
    for name in ("builder", "scripts"):
        if folder != JAVASCRIPT and not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": PATH,
            # perf_analyzer, which genai-perf runs, looks for CUDA's runtime, though it needs no GPU.
            "LD_LIBRARY_PATH": str(_LIBRARIES),
            # aiperf gives its processes 30 s to start, which a machine that is busy may not keep.
            "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "240",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
