"""Engines under the same load, each through the real stack; what can't be compared is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.__main__ import main
from perf.engines import paced_engine


@pytest.mark.servers
def test_two_engines_are_measured_and_the_faster_one_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = paced_engine(tmp_path, 50), paced_engine(tmp_path, 200)
    report = tmp_path / "report.html"
    arguments = [f"slow={slow}", f"fast={fast}", "--concurrency", "1", "4", "--duration", "1.5"]
    arguments += ["--n_output_tokens", "20", "--report", str(report)]
    assert main(["compare-engines", *arguments]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[4:]]
    assert [(engine, concurrency) for engine, _, concurrency, *_ in rows] == [
        ("slow", "1"),
        ("fast", "1"),
        ("slow", "4"),
        ("fast", "4"),
    ]
    assert all(kind == "paced" and failed == "0" for _, kind, *_, failed in rows)
    assert all(float(first) > 0 for *_, first, _, _ in rows)
    speeds = {(engine, concurrency): float(speed) for engine, _, concurrency, speed, *_ in rows}
    assert 50 >= speeds["slow", "1"] < speeds["slow", "4"] <= 200
    assert speeds["slow", "1"] < speeds["fast", "1"] <= 200
    gaps = {engine: float(gap) for engine, *_, gap, _ in rows}
    assert gaps["fast"] < gaps["slow"]
    page = report.read_text()
    assert page.count("<svg") == 3
    assert "| fast   | paced |" in page


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
