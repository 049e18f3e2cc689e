"""What docs/clients.md shows, and no other test runs, is done as it stands there; its versions are true."""

import json
import re
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, Runner
from tests.clients.documented import PAGE, Block, all_blocks, run_block
from tests.clients.javascript.install import JAVASCRIPT

pytestmark = pytest.mark.servers

OTHERS = ("Agents", "aiperf", "genai-perf", "NVIDIA's clients")
"""Sections whose commands have tests of their own."""


@pytest.mark.parametrize(
    "block", [block for block in all_blocks() if block.section not in OTHERS], ids=lambda block: block.section
)
def test_it_runs_and_prints(runner: Runner, tmp_path: Path, block: Block) -> None:
    assert run_block(block, runner, tmp_path).strip()


def test_the_versions_are_those_installed() -> None:
    # NVIDIA's clients are scripts, not a package.
    row = re.compile(r"^\| ([a-z@][\w/@-]*)( for JavaScript)?[^|]*\| ([\d.]+)", re.MULTILINE)
    rows = row.findall(PAGE.read_text())
    assert len(rows) == 16
    npm = json.loads((JAVASCRIPT / "package.json").read_text())["dependencies"]
    locks = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("clients", "gateways")]
    pinned = set(re.findall(r"^([\w.-]+)==([\w.]+)", "\n".join(locks), re.MULTILINE))
    for name, is_npms, version in rows:
        if is_npms:
            assert npm[name] == version
        else:
            assert (name, version) in pinned
