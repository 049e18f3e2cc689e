"""What docs/clients.md shows, and no other test runs, is done as it stands there; its versions are true."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from tests.clients.conftest import Runner
from tests.clients.documented import JAVASCRIPT, PAGE, Block, all_blocks, run_block

pytestmark = pytest.mark.servers

OTHERS = ("aiperf", "genai-perf", "NVIDIA's clients")
"""Sections whose commands have tests of their own."""


@pytest.mark.parametrize(
    "block", [block for block in all_blocks() if block.section not in OTHERS], ids=lambda block: block.section
)
def test_it_runs_and_prints(runner: Runner, tmp_path: Path, block: Block) -> None:
    assert run_block(block, runner, tmp_path).strip()


def test_the_versions_are_those_installed() -> None:
    # NVIDIA's clients are scripts, not a package.
    rows = re.findall(r"^\| ([a-z][\w-]*)( for JavaScript)?[^|]*\| ([\d.]+)", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 6
    npm = json.loads((JAVASCRIPT / "package.json").read_text())["dependencies"]
    for name, is_npms, version in rows:
        if not is_npms and metadata.packages_distributions().get(name.replace("-", "_")):
            assert metadata.version(name) == version
        elif is_npms:
            assert npm[name] == version
