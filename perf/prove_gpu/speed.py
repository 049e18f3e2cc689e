"""The engine in its own process, our layers and vLLM's server, all resident, measured in turn round by round.

Machines differ and one machine's speed wanders; so what is compared is measured within seconds of each other,
in an order that rotates, and the ratios are taken round by round.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import sub, truediv
from typing import Any

from perf.processes import OTHER, cpu_s_by_role
from perf.prove_gpu import servers
from perf.prove_gpu.client import measure as measure_over_http
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import Measure
from perf.rounds import median, within_rounds
from perf.table import table

Row = dict[str, Any]

IN_PROCESS, OPENAI = "in process, async", "openai"
_REFERENCES = (IN_PROCESS, OPENAI)
_HEAD = ("target", "streams", "tokens/s", "first token, ms", "added, ms")


def run_speed(proof: Proof) -> None:
    options = proof.options
    with _targets(proof) as targets:
        for measure in targets.values():
            measure(max(options.streams), 64, 0.0)  # What is compiled at first use.
        for number in range(options.rounds):
            for streams, gap_s in _loads(options.streams, options.gap_ms / 1000):
                _round(proof, targets, streams, gap_s, number)
    proof.facts["table"] = summary(proof.rows)
    print(summary_table(proof.facts["table"]), flush=True)


def _loads(all_streams: Sequence[int], gap_s: float) -> Iterator[tuple[int, float]]:
    """Each begun together; one also one after the other, as streams come to a server that has work."""
    yield from ((streams, 0.0) for streams in all_streams)
    several = [streams for streams in all_streams if streams > 1]
    if gap_s and several:
        yield min(several), gap_s


@contextmanager
def _targets(proof: Proof) -> Iterator[dict[str, Measure]]:
    """All that is compared, ready. The stack is first: it fills the engine's cache for the others."""

    def over_http(target: str, url: str) -> Measure:
        return partial(measure_over_http, target, url, proof.workload)

    with ExitStack() as opened, ThreadPoolExecutor() as pool:
        ours = opened.enter_context(servers.stack(proof, "stack"))
        proof.facts["stack_start_s"] = ours.start_s
        proof.say(f"stack: READY after {ours.start_s:.1f} s")
        in_process = pool.submit(opened.enter_context, servers.resident(proof))
        theirs = pool.submit(opened.enter_context, servers.openai(proof))
        yield {
            IN_PROCESS: in_process.result(),
            OPENAI: over_http("openai", theirs.result()),
            "openai, ours": over_http("openai", ours.openai_url),
            "slot": over_http("slot", ours.triton_url),
            "json": over_http("json", ours.server.url),
            "sse": over_http("sse", ours.server.url),
        }


def _round(proof: Proof, targets: dict[str, Measure], streams: int, gap_s: float, number: int) -> None:
    names = list(targets)
    first = number % len(names)
    for name in names[first:] + names[:first]:
        before = cpu_s_by_role()
        row = targets[name](streams, proof.options.tokens, gap_s)
        spent = cpu_s_by_role() - before
        cpu_s = {role: round(each, 2) for role, each in spent.items() if each >= 0.05 and role != OTHER}
        proof.row({**row, "target": name, "round": number, "gap_s": gap_s, "processor_s": cpu_s})
    proof.save()


def summary(rows: Sequence[Row]) -> list[Row]:
    """For each load and target: medians over the rounds, and what is compared taken within each round."""
    loads: dict[tuple[int, float], dict[str, dict[int, Row]]] = {}
    for row in rows:
        load = loads.setdefault((row["streams"], row["gap_s"]), {})
        load.setdefault(row["target"], {})[row["round"]] = row
    return [
        {
            "streams": streams,
            "gap_s": gap_s,
            "target": target,
            "tokens_per_second": median(row["tokens_per_second"] for row in mine.values()),
            "first_token_ms": median(row["first_token_ms"] for row in mine.values()),
            "first_token_added_ms": _within_rounds(sub, "first_token_ms", mine, load.get(IN_PROCESS, {}))
            if target != IN_PROCESS
            else None,
            "of": {
                name: _within_rounds(truediv, "tokens_per_second", mine, load[name])
                for name in _REFERENCES
                if name in load
            },
        }
        for (streams, gap_s), load in loads.items()
        for target, mine in load.items()
    ]


def _within_rounds(
    compare: Callable[[float, float], float], field: str, mine: dict[int, Row], other: dict[int, Row]
) -> float | None:
    sides = ({number: row[field] for number, row in rows.items()} for rows in (mine, other))
    return within_rounds(compare, *sides)


def summary_table(found: Sequence[Row]) -> str:
    """Markdown."""
    names = [name for name in _REFERENCES if any(name in each["of"] for each in found)]
    return table([*_HEAD, *(f"of {name}" for name in names)], [_cells(each, names) for each in found])


def _cells(each: Row, names: Sequence[str]) -> list[str]:
    gap = f", one every {each['gap_s'] * 1000:g} ms" if each["gap_s"] else ""
    return [
        each["target"],
        f"{each['streams']}{gap}",
        f"{each['tokens_per_second']:,.0f}",
        _shown(each["first_token_ms"], 1),
        _shown(each["first_token_added_ms"], 1),
        *(_shown(each["of"].get(name), 3) for name in names),
    ]


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
