"""perf/prove_gpu: what is made of the rounds. The rest of it runs on a GPU."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

from perf import prove_gpu
from perf.__main__ import main
from perf.prove_gpu.speed import summary, summary_table

IN_THE_ENGINES_PYTHON = ("known_model", "reference")
"""They import torch."""


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


def test_every_module_can_be_imported_here_but_those_of_the_engines_python() -> None:
    for module in pkgutil.iter_modules(prove_gpu.__path__, f"{prove_gpu.__name__}."):
        if not module.name.endswith(IN_THE_ENGINES_PYTHON):
            importlib.import_module(module.name)


def test_the_command_lists_its_phases(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prove-gpu", "--help"])
    assert ended.value.code == 0
    assert "preflight" in capsys.readouterr().out
