"""NVIDIA's AIPerf against the runner's OpenAI API, its metrics scraped beside."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Runner
from tests.clients.documented import Block, blocks, run_block

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="aiperf wants Python 3.11"),
    pytest.mark.servers,
]


@pytest.mark.parametrize("block", blocks("aiperf"), ids=["chat", "completions"])
def test_all_streams_are_counted_by_client_and_server_alike(
    runner: Runner, tmp_path: Path, block: Block
) -> None:
    run_block(block, runner, tmp_path)
    (report,) = tmp_path.glob("artifacts/*/profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 6
    assert figures["usage_completion_tokens"]["avg"] == 8
    # By aiperf's own tokenizer: eight tokens' text may be written in fewer.
    assert 6 < figures["output_sequence_length"]["avg"] <= 8
    metrics = json.loads((report.parent / "server_metrics_export.json").read_text())["metrics"]
    assert of_this_api(metrics["cog_triton_time_to_first_token_seconds"])["count"] == 6
    assert of_this_api(metrics["cog_triton_output_tokens"])["total"] == 6 * 8


def of_this_api(metric: dict[str, Any]) -> dict[str, float]:
    """Return what aiperf tells of a metric's change while it ran."""
    (series,) = [each for each in metric["series"] if each["labels"]["api"] == "openai"]
    return series["stats"]
