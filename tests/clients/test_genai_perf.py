"""NVIDIA's genai-perf, by Triton's perf_analyzer, against Triton's generate, and by gRPC."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import Runner
from tests.clients.documented import Block, blocks, run, run_block

pytestmark = pytest.mark.servers

ENDED = 'cog_triton_slot_ended_requests_total{reason="length"}'


@pytest.fixture(scope="module", autouse=True)
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        run(tmp_path_factory.mktemp("version"), "perf_analyzer", "--version")
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"perf_analyzer does not start (Debian, Ubuntu: apt-get install libb64-0d): {error}")


@pytest.mark.parametrize("block", blocks("genai-perf"), ids=["generate", "generate_stream", "gRPC"])
def test_all_requests_to_the_ensemble_succeed(runner: Runner, tmp_path: Path, block: Block) -> None:
    before = runner.metric(ENDED)
    run_block(block, runner, tmp_path)
    (report,) = tmp_path.glob("artifacts/*/*_genai_perf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 6
    assert figures["output_sequence_length"]["avg"] == 8
    assert ("inter_token_latency" in figures) == ("--streaming" in block.text)
    assert runner.metric(ENDED) - before >= 6
