"""perf/prove_gpu: what is made of the rounds. The rest of it runs on a GPU."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from perf import prove_gpu
from perf.engines import paced_engine
from perf.metrics import metrics
from perf.prove_gpu.cancel import CANCELLED, disconnect
from perf.prove_gpu.client import measure
from perf.prove_gpu.known_load import write_workload
from perf.prove_gpu.speed import summary, summary_table
from perf.servers import whole_stack
from tests.runner.long_runs.resources import settle

IN_THE_ENGINES_PYTHON = "known_model"
"""It imports torch."""


def row(target: str, number: int, speed: float, first_ms: float, gap_s: float = 0.0) -> dict[str, Any]:
    values = {"target": target, "round": number, "streams": 32, "gap_s": gap_s, "tokens_per_second": speed}
    return {**values, "first_token_ms": first_ms}


ROWS = [
    *(row("in process, async", number, speed, 10.0) for number, speed in enumerate((100, 50, 200))),
    *(
        row("slot", number, speed, first)
        for number, speed, first in ((0, 90, 11.0), (1, 45, 12.0), (2, 180, 40.0))
    ),
    row("slot", 3, 1.0, 12.0),
]


def test_a_ratio_is_taken_within_its_round() -> None:
    _, slot = summary(ROWS)
    assert slot["of"] == {"in process, async": 0.9}


def test_a_round_that_was_not_finished_gives_no_ratio() -> None:
    ours = [each for each in ROWS if each["target"] == "slot"]
    assert summary(ours)[0]["of"] == {}


def test_what_wanders_is_told_by_its_median() -> None:
    _, slot = summary(ROWS)
    assert (slot["tokens_per_second"], slot["first_token_ms"]) == (67.5, 12.0)


def test_what_is_added_to_the_first_token_is_taken_within_its_round() -> None:
    alone, slot = summary(ROWS)
    assert (alone["first_token_added_ms"], slot["first_token_added_ms"]) == (None, 2.0)


def test_streams_that_begin_one_after_another_are_a_load_of_their_own() -> None:
    later = [row("in process, async", 0, 10, 5.0, gap_s=0.02), row("slot", 0, 9, 5.5, gap_s=0.02)]
    *_, slot = summary([*ROWS, *later])
    assert (slot["gap_s"], slot["first_token_added_ms"], slot["tokens_per_second"]) == (0.02, 0.5, 9)
    assert summary_table([slot]).splitlines()[2].startswith("| slot   | 32, one every 20 ms |")


def test_the_table_has_a_row_for_each_target() -> None:
    lines = summary_table(summary(ROWS)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells == [
        ["in process, async", "32", "100", "10.0", "", "1.000"],
        ["slot", "32", "68", "12.0", "2.0", "0.900"],
    ]


def test_every_module_can_be_imported_here_but_that_of_the_engines_python() -> None:
    for module in pkgutil.iter_modules(prove_gpu.__path__, f"{prove_gpu.__name__}."):
        if not module.name.endswith(IN_THE_ENGINES_PYTHON):
            importlib.import_module(module.name)


@pytest.mark.servers
def test_every_target_is_loaded_and_read(tmp_path: Path) -> None:
    """On the paced engine, which repeats the prompt: exact only where that is the known answer."""
    engine = paced_engine(tmp_path, 200)
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(engine / "tokenizer.json", model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    (model / "following.json").write_text(json.dumps(list(range(tokenizer.get_vocab_size()))))
    workload = tmp_path / "workload.json"
    write_workload(workload, model, streams=8, lengths=(16,))
    work = json.loads(workload.read_text())
    repeated = tokenizer.decode_batch([prompt[:16] for prompt in work["prompts"]])
    known = tmp_path / "known.json"
    known.write_text(json.dumps({**work, "answers": {"16": repeated}}))
    with whole_stack(tmp_path, {"ENGINE_DIR": str(engine)}, has_api=True) as stack:
        urls = {"slot": stack.triton_url, "json": stack.server.url, "sse": stack.server.url}
        for target, url in {**urls, "openai": stack.openai_url}.items():
            row = measure(target, url, workload, 8, 16, gap_s=0.01)
            assert row["errors"] == []
            assert row["tokens_per_second"] > 0
            assert row["exact"] == 0
            assert (row["first_token_ms"] is None) is (target == "json")
            assert target == "slot" or measure(target, url, known, 8, 16)["exact"] == 8
        following = [0, 0, 0, 0, 0, 6, 7, 5]
        other = tmp_path / "other.json"
        other.write_text(json.dumps({"prompts": 8 * [[5, 6, 7]], "following": following}))
        assert measure("slot", stack.triton_url, other, 8, 16)["exact"] == 8
        running = disconnect(stack, 4 * [[5, 6, 7]], 2000)
        assert running["cog_triton_slot_running_requests"] == 4
        settle(stack.metrics_url)
        ended = metrics(stack.metrics_url)
        assert ended[CANCELLED] == 4
        assert ended["cog_triton_slot_ended_requests_total reason=length"] >= 40
