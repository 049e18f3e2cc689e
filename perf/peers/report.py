"""Markdown tables: medians over the rounds, and ratios within each, as a machine's speed changes."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from perf.load.statistics import Distribution
from perf.peers.measure import Row
from perf.table import table

_HEAD = ("tokens/s", "requests/s", "TTFT, ms", "gap, ms", "events/token", "CPU s/1,000 tokens", "front")
_MORE_HEAD = ("CPU ms/request", "front", "MiB", "not served")


def report(rows: Sequence[Row], reference: str) -> str:
    """Return one table for each workload. ``front`` is CPU time without that of the engine core."""
    return "\n\n".join(
        _section(name, [row for row in rows if row.workload == name], reference)
        for name in dict.fromkeys(row.workload for row in rows)
    )


def _section(name: str, rows: Sequence[Row], reference: str) -> str:
    head = ["server", *_HEAD, *_MORE_HEAD, f"tokens/s of {reference}", f"front CPU of {reference}"]
    other = [row for row in rows if row.server == reference]
    servers = dict.fromkeys(row.server for row in rows)
    body = [_cells([row for row in rows if row.server == server], other) for server in servers]
    return f"**{name}**\n\n{table(head, body)}"


def _cells(mine: Sequence[Row], other: Sequence[Row]) -> list[str]:
    def middle(value: Callable[[Row], float], form: str) -> str:
        return format(median(map(value, mine)), form)

    def ratio(value: Callable[[Row], float]) -> str:
        """Compare within each round that both have."""
        references = {row.round: value(row) for row in other if value(row)}
        ratios = [value(row) / references[row.round] for row in mine if row.round in references]
        return f"{median(ratios):.2f}" if ratios else ""

    return [
        mine[0].server,
        middle(lambda row: row.summary.tokens_per_second, ",.0f"),
        middle(lambda row: row.summary.requests_per_second, ",.1f"),
        _percentiles(row.summary.first_token_s for row in mine),
        _percentiles(row.summary.gap_s for row in mine),
        middle(_events_per_token, ".2f"),
        middle(lambda row: _per(sum(row.cpu_s.values()), row.summary.output_tokens), ".3f"),
        middle(_front_cpu_ms_per_token, ".3f"),
        middle(lambda row: _per(sum(row.cpu_s.values()), row.summary.completed), ".2f"),
        middle(lambda row: _per(row.front_cpu_s, row.summary.completed), ".2f"),
        middle(lambda row: row.memory_bytes / 2**20, ",.0f"),
        str(sum(row.not_served for row in mine)),
        ratio(lambda row: row.summary.tokens_per_second),
        ratio(_front_cpu_ms_per_token),
    ]


def _events_per_token(row: Row) -> float:
    streams, gaps = (each.count if each else 0 for each in (row.summary.first_token_s, row.summary.gap_s))
    return (streams + gaps) / (row.summary.output_tokens or 1)


def _front_cpu_ms_per_token(row: Row) -> float:
    return _per(row.front_cpu_s, row.summary.output_tokens)


def _per(seconds: float, count: int) -> float:
    return 1000 * seconds / count if count else 0.0


def _percentiles(found: Iterable[Distribution | None]) -> str:
    """Format p50/p90/p99 in ms, each the median of the rounds."""
    known = [(each.p50, each.p90, each.p99) for each in found if each]
    return "/".join(f"{1000 * median(column):,.0f}" for column in zip(*known, strict=True)) or "-"
