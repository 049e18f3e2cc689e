"""Soak and hostile traffic in their short forms: what they promise holds for a little while, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize(
    "command",
    [
        ["soak", "--requests", "600", "--concurrency", "80", "--places", "8", "--short"],
        ["hostile", "--seconds", "10", "--alone", "5", "--streams", "12", "--workers", "4"],
    ],
    ids=["soak", "hostile"],
)
def test_the_short_form_keeps_all_promises(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perf", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all promises kept" in done.stdout
