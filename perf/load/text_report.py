"""A load test's report as text: for a terminal, and for programs as JSON or CSV."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from perf.load.record import Record
from perf.load.statistics import Distribution
from perf.load.summary import Summary

_RULE = "-" * 30
_FIELDS = (("Std", "std"), ("Median", "p50"), ("Mean", "mean"), ("Max", "max"), ("Min", "min"))
_SERVER_FIELDS = (("mean", "mean"), ("std", "std"), ("median", "p50"), ("min", "min"), ("max", "max"))
_SERVER = (
    ("Server-side TPS", "tokens per second"),
    ("Response Latency", "execution time"),
    ("Time to First Token", "time to first token"),
)
_DERIVED = ("requests_per_second", "tokens_per_second", "failure_rate", "good_per_second")
_ANSWER = ("outcome", "error", "input_tokens", "output_tokens")
_TIMES = ("scheduled_s", "sent_s", "ended_s")
_RATES = ("latency_s", "first_token_s", "inter_token_s", "tokens_per_second")
_SHOWN_ERRORS = 5
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")


def text_report(configuration: Mapping[str, str], summary: Summary) -> str:
    """Return the sections that cog-triton's mock load test is documented with, and more."""
    levels = summary.concurrency
    sections = [
        ["Test Configuration:"],
        [f"{key}: {value}" for key, value in configuration.items()],
        [
            "Concurrency levels:",
            f"Mode concurrency: {levels.mode}",
            f"Mean concurrency: {levels.mean:.4f}",
            f"Median concurrency: {levels.median}",
            f"Max concurrency: {levels.max}",
            f"Min concurrency: {levels.min}",
        ],
        ["Statistics for completed predictions:"],
        [
            "Single-stream TPS:",
            *(f"SSTPS - {name}: {_value(summary.tokens_per_second_per_stream, of)}" for name, of in _FIELDS),
        ],
        [
            f"{'Latency - Std' if of == 'std' else f'{name} response latency'}: "
            f"{_value(summary.latency_s, of)} seconds"
            for name, of in _FIELDS
        ],
        ["Server-side metrics:"],
        list(_server(summary)) or ["(this kind of server reports none)"],
        list(_totals(summary)),
        list(_client_side(summary)),
    ]
    lines = [_RULE]
    for section in sections:
        lines += [*section, _RULE]
    return "\n".join(lines[:-1] + [f"Warning: {warning}" for warning in summary.warnings])


def _server(summary: Summary) -> Iterator[str]:
    for title, name in _SERVER:
        expected = summary.server.get(f"Expected {name}")
        actual = summary.server.get(f"Serverside {name}")
        if actual is None:
            continue
        yield title
        for label, field in _SERVER_FIELDS:
            before = f"Expected {label}: {_value(expected, field)}, " if expected else ""
            yield f"--{before}Actual {label}: {_value(actual, field)}"


def _totals(summary: Summary) -> Iterator[str]:
    yield f"Total requests made: {summary.requests}"
    yield f"Total requests started: {summary.requests - summary.busy}"
    yield f"Total requests completed: {summary.completed}"
    yield f"Failure rate: {summary.failure_rate:.3f}, Total failures: {summary.failed}"
    yield f"Cog already running prediction: {summary.busy}"
    yield f"E2E throughput: {summary.requests_per_second:.3f} rps"
    for error, count in list(summary.errors.items())[:_SHOWN_ERRORS]:
        yield f"{count} x {error}"


def _client_side(summary: Summary) -> Iterator[str]:
    """Yield the percentiles of what clients waited for, and what passed in all."""
    rows = {
        "Time to first token": summary.first_token_s,
        "Inter-token latency": summary.inter_token_s,
        "Gap between outputs": summary.gap_s,
        "Total latency": summary.latency_s,
        "Sent late by": summary.sent_late_s,
    }
    yield f"{'As clients saw it:':24}{''.join(f'{name:>10}' for name in _PERCENTILES)}"
    for name, values in rows.items():
        if values is not None:
            figures = (f"{getattr(values, each) * 1000:7.1f} ms" for each in _PERCENTILES)
            yield f"{name:24}{''.join(figures)}"
    if summary.first_token_s is None and summary.completed:
        yield "(time to first token and gaps need a stream: --protocol sse)"
    yield f"Output tokens: {summary.output_tokens}, {summary.tokens_per_second:.1f} tokens/s of all streams"
    if summary.good is not None and summary.good_per_second is not None:
        kept = f"{summary.good} of {summary.requests} requests kept the SLO"
        yield f"Goodput: {summary.good_per_second:.3f} rps, {kept}"
    yield f"Load generator: {summary.client_cpu_s:.2f} s of CPU"


def _value(values: Distribution | None, field: str) -> str:
    return "-" if values is None else f"{getattr(values, field):.3f}"


def summary_json(configuration: Mapping[str, str], summary: Summary) -> str:
    figures = asdict(summary) | {name: getattr(summary, name) for name in _DERIVED}
    return json.dumps({"configuration": dict(configuration), **figures}, indent=2) + "\n"


def records_csv(records: Sequence[Record]) -> str:
    """Return a header and a row per request; a value that does not exist is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_TIMES, *_ANSWER, *_RATES])
    for record in records:
        answers = [getattr(record.answer, name) for name in _ANSWER]
        writer.writerow([*_figures(record, _TIMES), *answers, *_figures(record, _RATES)])
    return text.getvalue()


def _figures(record: Record, names: Sequence[str]) -> list[str]:
    values = [getattr(record, name) for name in names]
    return ["" if value is None else f"{value:.6f}" for value in values]
