"""One HTML page that shows a load test at a glance: self-contained, nothing is fetched, no script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from perf.load.chart import Point, Series, chart, number
from perf.load.record import Record
from perf.load.statistics import Distribution, concurrency_steps
from perf.load.summary import Summary

_CSS = Path(__file__).with_name("report.css")
_BINS = 60
_SHOWN_ERRORS = 8


def html_report(configuration: Mapping[str, str], summary: Summary, records: Sequence[Record]) -> str:
    title = f"Load test of {configuration.get('Target', 'a server')}"
    facts = " · ".join(f"{key}: {value}" for key, value in configuration.items() if key != "Target")
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in summary.warnings)
    parts = [
        warnings,
        f'<div class="tiles">{"".join(_tiles(summary))}</div>',
        f'<div class="charts">{"".join(_charts(records))}</div>',
        f'<div class="card scroll"><h2>Distributions</h2>{_table(summary)}</div>',
        _errors(summary),
    ]
    return page(title, facts, parts)


def page(title: str, facts: str, parts: Sequence[str]) -> str:
    """A whole page of these parts."""
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_CSS.read_text()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="dim">{escape(facts)}</p>
{body}
</body>
</html>
"""


def _tiles(summary: Summary) -> Iterator[str]:
    tps, first, inter, total = (
        summary.tokens_per_second_per_stream,
        summary.first_token_s,
        summary.inter_token_s,
        summary.latency_s,
    )
    if tps is not None:
        yield _tile(f"{tps.mean:.1f}", "tokens/s per stream", f"mean; slowest {tps.min:.1f}")
    yield _tile(
        number(summary.tokens_per_second), "tokens/s of all streams", f"{summary.output_tokens:,} in all"
    )
    for name, values in (
        ("to the first token", first),
        ("between tokens", inter),
        ("per request, in all", total),
    ):
        if values is not None:
            yield _tile(milliseconds(values.p50), name, f"median; p99 {milliseconds(values.p99)}")
    yield _tile(
        f"{summary.requests_per_second:.2f}",
        "requests/s completed",
        f"{summary.completed} in {summary.duration_s:.1f} s; at most {summary.concurrency.max} at once",
    )
    if summary.good is not None and summary.good_per_second is not None:
        missed = summary.requests - summary.good
        note = f"requests/s; {missed} of {summary.requests} missed the SLO"
        yield _tile(f"{summary.good_per_second:.2f}", "goodput", note, is_bad=missed > 0)
    unserved = summary.failed + summary.busy
    note = f"{summary.failed} failed, {summary.busy} refused as busy, of {summary.requests}"
    yield _tile(str(unserved), "requests not served", note, is_bad=unserved > 0)


def _tile(value: str, name: str, note: str, *, is_bad: bool = False) -> str:
    return (
        f'<div class="card tile{" bad" if is_bad else ""}"><b>{escape(value)}</b>'
        f'<span>{escape(name)}</span><div class="dim">{escape(note)}</div></div>'
    )


def milliseconds(value_s: float) -> str:
    value_ms = value_s * 1000
    if value_ms >= 1000:
        return f"{value_s:.2f} s"
    return f"{value_ms:.1f} ms" if value_ms < 100 else f"{value_ms:.0f} ms"


def _charts(records: Sequence[Record]) -> Iterator[str]:
    yield card(
        "Requests in flight",
        "Sent and not yet answered, exactly.",
        chart([Series("in flight", concurrency_steps(records), "steps")], x="seconds", y="requests"),
    )
    yield card(
        "Output of all streams",
        "Tokens per second; of an answer in one piece, as if its tokens had come evenly.",
        chart([Series("tokens/s", token_rate(records), "steps", "series-3")], x="seconds", y="tokens/s"),
    )
    done = [(each.scheduled_s, each.latency_s * 1000) for each in records if each.is_completed]
    lost = [(each.scheduled_s, each.latency_s * 1000) for each in records if not each.is_completed]
    dots = [Series("completed", done, "dots")] + ([Series("not served", lost, "dots", "bad")] if lost else [])
    yield card(
        "Latency of each request",
        "From when it was planned to be sent to its last byte.",
        chart(dots, x="planned at, seconds", y="ms"),
    )
    firsts = [each.first_token_s for each in records if each.is_completed and each.first_token_s is not None]
    gaps = [max(each.gaps_s) for each in records if each.is_completed and len(each.answer.output_s) > 1]
    if firsts:
        series = [
            Series("time to first token", shares(firsts)),
            Series("longest gap in a stream", shares(gaps), color="series-2"),
        ]
        yield card(
            "How many waited how long",
            "Share of requests whose wait was at most this.",
            chart(series, x="ms", y="% of requests"),
        )
    else:
        totals = [each.latency_s for each in records if each.is_completed]
        yield card(
            "How many waited how long",
            "Share of requests that were answered within this time.",
            chart([Series("total latency", shares(totals))], x="ms", y="% of requests"),
        )


def card(title: str, caption: str, content: str) -> str:
    return (
        f'<figure class="card"><h2>{escape(title)}</h2><figcaption>{escape(caption)}</figcaption>'
        f"{content}</figure>"
    )


def shares(values_s: Sequence[float]) -> list[Point]:
    """(milliseconds, percent of the values that are at most this)."""
    ordered = sorted(values_s)
    return [(value * 1000, 100 * (index + 1) / len(ordered)) for index, value in enumerate(ordered)]


def token_rate(records: Sequence[Record]) -> list[Point]:
    """(seconds, output tokens per second from then on) of completed requests."""
    done = [each for each in records if each.is_completed]
    end_s = max((each.ended_s for each in done), default=0.0)
    if not end_s:
        return []
    bin_s = end_s / _BINS
    tokens: Counter[int] = Counter()
    for record in done:
        times = record.answer.output_s or [
            record.sent_s + (index + 1) * (record.ended_s - record.sent_s) / _BINS for index in range(_BINS)
        ]
        for at_s in times:
            tokens[min(math.floor(at_s / bin_s), _BINS - 1)] += record.answer.output_tokens / len(times)  # type: ignore[assignment]
    rates = [(index * bin_s, tokens[index] / bin_s) for index in range(_BINS)]
    return [*rates, (end_s, rates[-1][1])]


def _table(summary: Summary) -> str:
    rows: list[tuple[str, Distribution | None, float, str]] = [
        ("Tokens/s per stream", summary.tokens_per_second_per_stream, 1, ""),
        ("Time to first token", summary.first_token_s, 1000, "ms"),
        ("Inter-token latency", summary.inter_token_s, 1000, "ms"),
        ("Gap between pieces of output", summary.gap_s, 1000, "ms"),
        ("Total latency", summary.latency_s, 1000, "ms"),
        ("Sent late by", summary.sent_late_s, 1000, "ms"),
        *((f"Server: {name.lower()}", values, 1, "") for name, values in summary.server.items()),
    ]
    head = "".join(f"<th>{name}</th>" for name in ("", "mean", "std", "min", "p50", "p90", "p99", "max"))
    body = "".join(
        _row(name, values, factor, unit) for name, values, factor, unit in rows if values is not None
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(name: str, values: Distribution, factor: float, unit: str) -> str:
    fields = (values.mean, values.std, values.min, values.p50, values.p90, values.p99, values.max)
    decimals = 3 if max(fields) * factor < 10 else 1
    cells = "".join(f"<td>{value * factor:,.{decimals}f}</td>" for value in fields)
    return f"<tr><td>{escape(name)}{f', {unit}' if unit else ''}</td>{cells}</tr>"


def _errors(summary: Summary) -> str:
    if not summary.errors:
        return ""
    rows = "".join(
        f"<tr><td>{escape(text)}</td><td>{count}</td></tr>"
        for text, count in list(summary.errors.items())[:_SHOWN_ERRORS]
    )
    head = "<thead><tr><th>What went wrong</th><th>requests</th></tr></thead>"
    return (
        f'<div class="card scroll" style="margin-top:14px"><table>{head}<tbody>{rows}</tbody></table></div>'
    )
