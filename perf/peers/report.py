"""Markdown tables of the rows: medians over the rounds, ratios to a reference within each round."""

from collections.abc import Callable, Sequence
from operator import truediv
from typing import Any

from perf.peers.measure import Row
from perf.rounds import median, within_rounds
from perf.table import table

_HEAD = (
    "tokens/s",
    "requests/s",
    "TTFT, ms",
    "gap, ms",
    "events/token",
    "CPU s/1,000 tokens",
    "front",
    "CPU ms/request",
    "front",
    "MiB",
    "not served",
)


def report(rows: Sequence[Row], reference: str) -> str:
    """One table for each workload. ``front`` is CPU time without that of the engine core."""
    names = dict.fromkeys(row.workload for row in rows)
    return "\n\n".join(
        _section(name, [row for row in rows if row.workload == name], reference) for name in names
    )


def _section(name: str, rows: Sequence[Row], reference: str) -> str:
    servers = {
        server: [row for row in rows if row.server == server]
        for server in dict.fromkeys(r.server for r in rows)
    }
    head = ["server", *_HEAD, f"tokens/s of {reference}", f"front CPU of {reference}"]
    body = [_cells(server, mine, servers.get(reference, [])) for server, mine in servers.items()]
    return f"**{name}**\n\n{table(head, body)}"


def _cells(server: str, mine: Sequence[Row], other: Sequence[Row]) -> list[str]:
    def middle(value: Callable[[Row], float], form: str) -> str:
        return format(median(map(value, mine)) or 0.0, form)

    def of(value: Callable[[Row], float]) -> str:
        sides = ({row.round: value(row) or None for row in rows} for rows in (mine, other))
        ratio = within_rounds(truediv, *sides)
        return "" if ratio is None else f"{ratio:.2f}"

    return [
        server,
        middle(lambda row: row.tokens_per_second, ",.0f"),
        middle(lambda row: row.requests_per_second, ",.1f"),
        _percentiles([row.first_token_ms for row in mine]),
        _percentiles([row.gap_ms for row in mine]),
        middle(lambda row: row.events_per_token, ".2f"),
        middle(lambda row: _per(row.total_cpu_s * 1000, row.tokens), ".3f"),
        middle(lambda row: _per(row.front_cpu_s * 1000, row.tokens), ".3f"),
        middle(lambda row: _per(row.total_cpu_s * 1000, row.completed), ".2f"),
        middle(lambda row: _per(row.front_cpu_s * 1000, row.completed), ".2f"),
        middle(lambda row: row.memory_bytes / 2**20, ",.0f"),
        str(sum(row.not_served for row in mine)),
        of(lambda row: row.tokens_per_second),
        of(lambda row: _per(row.front_cpu_s, row.tokens)),
    ]


def _per(value: float, count: int) -> float:
    return value / count if count else 0.0


def _percentiles(found: Sequence[Any]) -> str:
    """p50/p90/p99, each the median of the rounds."""
    known = [each for each in found if each is not None]
    return "/".join(f"{median(column):,.0f}" for column in zip(*known, strict=True)) if known else "-"
