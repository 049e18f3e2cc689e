"""The project's own load test as one client among the others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, Runner


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_every_request_succeeds_with_the_tokens_asked_for(runner: Runner, tmp_path: Path, api: str) -> None:
    records = tmp_path / "records.json"
    done = subprocess.run(
        [
            ROOT / ".venv" / "bin" / "python", "scripts/test_perf.py", "--target", "openai", "--api", api,
            "--url", runner.openai_url, "--model", runner.model(), "--unit", "batch", "--rate", "2",
            "--duration", "2", "--n_input_tokens", "16", "--n_output_tokens", "8", "--json", str(records),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(records.read_text())
