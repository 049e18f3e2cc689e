"""What a load test tells: the documented report, a page, JSON, CSV."""

import asyncio
import csv
import io
import re
from html.parser import HTMLParser

import pytest

from perf.load.command import surroundings
from perf.load.generator import Run
from perf.load.html_report import html_report, svg, thinned, token_rate
from perf.load.statistics import parse_slo
from perf.load.summary import summarize
from perf.load.text_report import records_csv, text_report
from tests.perf.load.records import record
from tests.scripted_server import ScriptedServer, json_answer

CONFIGURATION = {"Output Method": "yield", "Mode": "batch", "Rate": "24.0 batch", "Target": "mock at <x>"}
DOCUMENTED = """\
Test Configuration:
Output Method: yield
Mode: batch
Rate: 24.0 batch
Target: mock at <x>
Concurrency levels:
Mode concurrency: 24
Mean concurrency: 18.0625
Median concurrency: 24.0
Max concurrency: 24
Min concurrency: 0
Statistics for completed predictions:
Single-stream TPS:
SSTPS - Std: 0.000
SSTPS - Median: 64.000
SSTPS - Mean: 64.000
SSTPS - Max: 64.000
SSTPS - Min: 64.000
Latency - Std: 0.000 seconds
Median response latency: 2.000 seconds
Mean response latency: 2.000 seconds
Max response latency: 2.000 seconds
Min response latency: 2.000 seconds
Server-side metrics:
Server-side TPS
--Expected mean: 100.000, Actual mean: 97.500
--Expected std: 0.000, Actual std: 0.000
--Expected median: 100.000, Actual median: 97.500
--Expected min: 100.000, Actual min: 97.500
--Expected max: 100.000, Actual max: 97.500
Total requests made: 74
Total requests started: 73
Total requests completed: 72
Failure rate: 0.014, Total failures: 1
Cog already running prediction: 1
E2E throughput: 9.000 rps
1 x HTTP 409
1 x <script>alert(1)</script>"""


def made_run(*, is_streaming: bool = False) -> Run:
    """Three batches of 24 in 8 seconds, and one each that failed and was refused in a pause."""
    server = {"Serverside tokens per second": 97.5, "Expected tokens per second": 100.0}
    records = [
        record(
            start,
            start + 2.0,
            tokens=128,
            output_s=tuple(start + 0.1 + index * 0.015 for index in range(127)) if is_streaming else (),
            server=server,
        )
        for start in (0.0, 3.0, 6.0)
        for _ in range(24)
    ]
    records.append(record(2.5, 2.75, outcome="busy", error="HTTP 409"))
    records.append(record(2.5, 2.75, outcome="failed", error="<script>alert(1)</script>"))
    return Run(records, client_cpu_s=0.25)


def test_the_documented_report_is_printed_section_by_section() -> None:
    lines = text_report(CONFIGURATION, summarize(made_run())).splitlines()
    assert "\n".join(line for line in lines if "-----" not in line).startswith(DOCUMENTED + "\n")


def test_what_clients_saw_stands_below() -> None:
    report = text_report(CONFIGURATION, summarize(made_run(is_streaming=True), parse_slo(["ttft_ms=150"])))
    rows = {line[:24].strip(): re.findall(r"([\d.]+) ms", line[24:]) for line in report.splitlines()}
    assert rows["Time to first token"] == ["100.0"] * 5
    assert rows["Total latency"] == ["2000.0"] * 5
    assert rows["Inter-token latency"] == ["14.9"] * 5
    assert "Goodput: 9.000 rps, 72 of 74 requests kept the SLO" in report


def test_a_test_in_which_nothing_was_completed_or_sent_is_told_too() -> None:
    run = Run([record(0, 0.5, outcome="failed", error="no")], 0.0)
    report = text_report(CONFIGURATION, summarize(run))
    assert "Total requests completed: 0" in report
    assert "SSTPS - Mean: -" in report
    assert "<html" in html_report(CONFIGURATION, summarize(run), run.records)
    assert "Total requests made: 0" in html_report({}, summarize(Run([], 0.0)), [])


def test_a_server_that_could_not_keep_up_is_named() -> None:
    (warning,) = summarize(made_run()).warnings
    assert warning.startswith(
        "1 of 74 requests, which are not in the failure rate, were refused as the server"
    )
    queueing = [record(at_s, 2 * at_s + 0.5) for at_s in range(8)]
    (warning,) = summarize(Run(queueing, 0.0)).warnings
    assert warning.startswith("answers took longer and longer, from 1.0 s to 7.0 s: the server could not")
    steady = [record(at_s, at_s + 0.5 + at_s % 2) for at_s in range(8)]
    assert summarize(Run(steady, 0.0)).warnings == ()


def test_answers_of_another_length_are_told() -> None:
    run = Run([record(0, 1, tokens=tokens) for tokens in (3, 7, 5, 7)], 0.0)
    assert summarize(run, None, 7).warnings == ("2 of 4 answers have 3 to 5 tokens and not 7",)
    assert summarize(run).warnings == ()


def test_a_client_that_was_too_slow_says_so() -> None:
    late = Run([record(0.5, 1.0, scheduled_s=0.0)], client_cpu_s=0.99)
    report = text_report({}, summarize(late))
    assert "Warning: a request was sent 500 ms late" in report
    assert "Warning: the load generator used 99%" in report


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_page_has_all_and_fetches_and_runs_nothing(is_streaming: bool) -> None:
    run = made_run(is_streaming=is_streaming)
    text = html_report(CONFIGURATION, summarize(run), run.records)
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert "script" not in page.tags
    assert "url(" not in text
    assert "@import" not in text
    assert page.tags.count("svg") == 3
    assert "prefers-color-scheme: dark" in text
    assert "SSTPS - Mean: 64.000" in text
    assert "mock at &lt;x&gt;" in text
    assert "<dt>Mode</dt><dd>batch</dd>" in text
    assert (f"{'Time to first token':24}{'  100.0 ms' * 5}" in text) == is_streaming
    points = token_rate([each for each in run.records if each.is_completed])
    bin_s = points[1][0] - points[0][0]
    assert sum(rate * bin_s for _, rate in points[:-1]) == pytest.approx(72 * 128)


VERSIONS = [
    ("openai", '{"version": "0.11.0"}', "version 0.11.0"),
    ("triton", '{"name": "triton", "version": "2.50", "extensions": []}', "triton 2.50"),
    ("mock", '{"status": "READY", "version": {"cog": "0.1", "python": "3.12"}}', "cog 0.1, python 3.12"),
    ("mock", "[]", None),
    ("mock", "no JSON", None),
    ("owner/model", '{"version": "1"}', None),
]


def test_the_servers_versions_are_told_where_it_tells_them() -> None:
    for target, told, expected in VERSIONS:
        answer = json_answer(told)
        with ScriptedServer(lambda asked, write, answer=answer: write(answer) is None) as server:
            lines = asyncio.run(surroundings(target, server.url))
        assert lines.get("Server") == expected
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", lines["Date"])
        assert "Python" in lines["Load generator"]
    assert "Server" not in asyncio.run(surroundings("mock", server.url))


def test_the_csv_has_a_row_per_request() -> None:
    rows = list(csv.DictReader(io.StringIO(records_csv(made_run(is_streaming=True).records))))
    assert len(rows) == 74
    assert (rows[0]["outcome"], rows[0]["output_tokens"]) == ("completed", "128")
    assert float(rows[0]["latency_s"]) == 2.0
    assert rows[-1]["error"] == "<script>alert(1)</script>"
    assert rows[-1]["first_token_s"] == ""


def test_a_chart_of_very_many_points_stays_small_and_keeps_the_last() -> None:
    points = [(float(index), float(index % 7)) for index in range(100_000)]
    assert len(thinned(points)) <= 2001
    assert thinned(points)[-1] == points[-1]
    assert len(svg("x", "y", {"many": points})) < 100_000
    assert "nothing to show" in svg("x", "y", {"none": []})
