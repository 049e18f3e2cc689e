"""NVIDIA's genai-perf, by Triton's perf_analyzer, against Triton's generate, and by gRPC."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import TOKENIZER, Runner
from tests.clients.programs import run_program

LOAD = (
    "--tokenizer", str(TOKENIZER), "--synthetic-input-tokens-mean", "16", "--output-tokens-mean", "8",
    "--concurrency", "2", "--request-count", "6",
)  # fmt: skip
ENDED = 'cog_triton_slot_ended_requests_total{reason="length"}'


@pytest.fixture(scope="module", autouse=True)
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        run_program(tmp_path_factory.mktemp("version"), "perf_analyzer", "--version")
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"perf_analyzer does not start (Debian, Ubuntu: apt-get install libb64-0d): {error}")


@pytest.mark.parametrize(
    ("endpoint", "streaming"),
    # A stream must be asked for by name: it asks generate, by which Triton answers no stream.
    [("generate", ()), ("generate_stream", ("--streaming",))],
)
def test_all_requests_to_the_ensemble_succeed(
    runner: Runner, tmp_path: Path, endpoint: str, streaming: tuple[str, ...]
) -> None:
    before = runner.metric(ENDED)
    run_program(
        tmp_path, "genai-perf", "profile", "-m", "ensemble", "-u", runner.triton_address,
        "--endpoint-type", "generate", "--endpoint", f"v2/models/ensemble/{endpoint}", *streaming, *LOAD,
    )  # fmt: skip
    figures = figures_in(tmp_path)
    assert ("inter_token_latency" in figures) == bool(streaming)
    assert runner.metric(ENDED) - before >= 6


def test_all_streams_by_grpc_succeed(runner: Runner, tmp_path: Path) -> None:
    """As it asks NVIDIA's TensorRT-LLM backend, with Triton's own metrics beside."""
    run_program(
        tmp_path, "genai-perf", "profile", "-m", "ensemble", "-u", runner.triton_grpc_address,
        "--endpoint-type", "kserve", "--backend", "tensorrtllm", "--streaming",
        "--server-metrics-url", runner.triton_metrics_url, *LOAD,
    )  # fmt: skip
    assert "inter_token_latency" in figures_in(tmp_path)


def figures_in(folder: Path) -> dict[str, Any]:
    """What it tells of a run, all of whose requests had the tokens asked for."""
    (report,) = folder.glob("artifacts/*/*_genai_perf.json")
    figures: dict[str, Any] = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 6
    assert figures["output_sequence_length"]["avg"] == 8
    return figures
