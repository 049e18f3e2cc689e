"""NVIDIA's genai-perf, by Triton's perf_analyzer, against Triton's generate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import TOKENIZER, Runner
from tests.clients.programs import run_program


@pytest.fixture(scope="module", autouse=True)
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        run_program(tmp_path_factory.mktemp("version"), "perf_analyzer", "--version")
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"perf_analyzer does not start (Debian, Ubuntu: apt-get install libb64-0d): {error}")


@pytest.mark.parametrize("streaming", [(), ("--streaming",)], ids=["generate", "generate_stream"])
def test_all_requests_to_the_ensemble_succeed(
    runner: Runner, tmp_path: Path, streaming: tuple[str, ...]
) -> None:
    name = 'cog_triton_slot_ended_requests_total{reason="length"}'
    before = runner.metric(name)
    run_program(
        tmp_path, "genai-perf", "profile", "-m", "ensemble", "--endpoint-type", "generate",
        "-u", runner.triton_address, "--tokenizer", str(TOKENIZER), "--synthetic-input-tokens-mean", "16",
        "--output-tokens-mean", "8", "--concurrency", "2", "--request-count", "6", *streaming,
    )  # fmt: skip
    (report,) = tmp_path.glob("artifacts/*/*_genai_perf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 6
    assert runner.metric(name) - before >= 6
