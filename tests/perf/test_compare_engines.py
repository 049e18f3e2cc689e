"""Engines under the same load, each through the real stack; what can't be compared is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.__main__ import main
from perf.engines import paced_engine


@pytest.mark.servers
def test_two_engines_are_measured_and_the_faster_one_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = paced_engine(tmp_path, 50), paced_engine(tmp_path, 200)
    report, data = tmp_path / "report.html", tmp_path / "figures.json"
    arguments = [f"slow={slow}", f"fast={fast}", "--concurrency", "1", "4", "--duration", "1.5"]
    arguments += ["--n_output_tokens", "20", "--report", str(report), "--json", str(data)]
    assert main(["compare-engines", *arguments]) == 0
    points = json.loads(data.read_text())
    assert [(each["engine"], each["concurrency"]) for each in points] == [
        ("slow", 1),
        ("slow", 4),
        ("fast", 1),
        ("fast", 4),
    ]
    assert all(each["kind"] == "paced" and each["failed"] == 0 for each in points)
    assert all(each["first_token_s"] > 0 for each in points)
    speeds = {(each["engine"], each["concurrency"]): each["tokens_per_second"] for each in points}
    assert 50 >= speeds["slow", 1] < speeds["slow", 4] <= 200
    assert speeds["slow", 1] < speeds["fast", 1] <= 200
    gaps = {each["engine"]: each["inter_token_s"] for each in points}
    assert gaps["fast"] < gaps["slow"]
    printed = capsys.readouterr().out
    assert printed.count("| slow   | paced |") == printed.count("| fast   | paced |") == 2
    page = report.read_text()
    assert page.count("<svg") == 3
    assert "<td>fast</td>" in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["hf"], "hf"),
        (["hf=/nowhere/engine.tar"], "/nowhere/engine.tar"),
        (["hf=a", "hf=b"], "hf"),
        (["a=a", "b=b", "c=c", "d=d", "e=e"], "5"),
        (["hf=a", "--concurrency", "0"], "0"),
        (["hf=a", "--duration", "nan"], "nan"),
        (["hf=a", "--report", "/nowhere/page.html"], "/nowhere/page.html"),
    ],
)
def test_what_cannot_be_compared_is_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare-engines", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("E")
    assert named in line
