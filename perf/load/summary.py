"""All figures of one load test, from its records: what the reports and ``--json`` show."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from perf.load.generator import Run
from perf.load.record import Record
from perf.load.statistics import Concurrency, Distribution, concurrency, distribution, is_good

_LATE_S = 0.05
_BUSY_CLIENT = 0.9
_GROWTH, _GROWN_S = 2.0, 1.0
"""Growth of answer times, from the first to the last quarter, that shows a growing queue."""
_TOO_MUCH = "the server could not keep up; lower --rate"


@dataclass(frozen=True)
class Summary:
    """Distributions are of completed requests, None where there is no value. Seconds, tokens, requests."""

    requests: int
    completed: int
    failed: int
    busy: int
    errors: dict[str, int]
    duration_s: float
    concurrency: Concurrency
    tokens_per_second_per_stream: Distribution | None
    latency_s: Distribution | None
    first_token_s: Distribution | None
    inter_token_s: Distribution | None
    gap_s: Distribution | None
    """Between pieces of output, of all streams: its maximum is the longest stall anyone saw."""
    server: dict[str, Distribution | None]
    """Measurements of the server, by the name in its log."""
    input_tokens: int
    output_tokens: int
    good: int | None
    """Requests that kept the SLO; None where there was none."""
    sent_late_s: Distribution | None
    """Delays of sending, which this side adds to latencies."""
    client_cpu_s: float
    warnings: tuple[str, ...]

    @property
    def requests_per_second(self) -> float:
        return self.completed / self.duration_s if self.duration_s else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def failure_rate(self) -> float:
        return self.failed / self.requests if self.requests else 0.0

    @property
    def good_per_second(self) -> float | None:
        """Goodput: requests per second that met the objectives; None without objectives."""
        return None if self.good is None else self.good / self.duration_s if self.duration_s else 0.0


def summarize(run: Run, slo: Mapping[str, float] | None = None, output_tokens: int | None = None) -> Summary:
    """Summarize records. ``slo`` is of parse_slo; ``output_tokens`` is what each answer should have."""
    records = run.records
    done = [record for record in records if record.is_completed]
    outcomes = Counter(record.answer.outcome for record in records)
    server: defaultdict[str, list[float]] = defaultdict(list)
    for record in done:
        for name, value in record.answer.server.items():
            server[name].append(value)
    return Summary(
        requests=len(records),
        completed=len(done),
        failed=outcomes["failed"],
        busy=outcomes["busy"],
        errors=dict(Counter(each.answer.error for each in records if each.answer.error).most_common()),
        duration_s=run.duration_s,
        concurrency=concurrency(records),
        tokens_per_second_per_stream=distribution(record.tokens_per_second for record in done),
        latency_s=distribution(record.latency_s for record in done),
        first_token_s=distribution(record.first_token_s for record in done),
        inter_token_s=distribution(record.inter_token_s for record in done),
        gap_s=distribution(gap for record in done for gap in record.gaps_s),
        server={name: distribution(values) for name, values in server.items()},
        input_tokens=sum(record.answer.input_tokens or 0 for record in done),
        output_tokens=sum(record.answer.output_tokens for record in done),
        good=sum(is_good(record, slo) for record in records) if slo else None,
        sent_late_s=distribution(record.sent_s - record.scheduled_s for record in records),
        client_cpu_s=run.client_cpu_s,
        warnings=(*_warnings(run), *_lengths(done, output_tokens)),
    )


def _lengths(done: Sequence[Record], output_tokens: int | None) -> Iterable[str]:
    others = [
        each.answer.output_tokens for each in done if output_tokens not in (None, each.answer.output_tokens)
    ]
    if others:
        extent = f"{min(others)} to {max(others)} tokens"
        yield f"{len(others)} of {len(done)} answers have {extent} and not {output_tokens}"


def _warnings(run: Run) -> Iterable[str]:
    late_s = max((record.sent_s - record.scheduled_s for record in run.records), default=0.0)
    if late_s > _LATE_S:
        yield (
            f"a request was sent {late_s * 1000:.0f} ms late, as the load generator waited for a processor; "
            "latencies are measured from the scheduled time all the same"
        )
    if busy := sum(record.answer.outcome == "busy" for record in run.records):
        yield (
            f"{busy} of {len(run.records)} requests, which are not in the failure rate, were refused as the "
            f"server was busy: {_TOO_MUCH}"
        )
    latencies_s = [record.latency_s for record in run.records if record.is_completed]
    if quarter := len(latencies_s) // 4:
        first_s, last_s = fmean(latencies_s[:quarter]), fmean(latencies_s[-quarter:])
        if last_s > _GROWTH * first_s and last_s - first_s > _GROWN_S:
            yield f"answers took longer and longer, from {first_s:.1f} s to {last_s:.1f} s: {_TOO_MUCH}"
    load = run.client_cpu_s / run.duration_s if run.duration_s else 0.0
    if load > _BUSY_CLIENT:
        yield f"the load generator used {load:.0%} of a processor: these are its limits, not the server's"
