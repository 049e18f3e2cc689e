"""The engine in its own process, our layers and vLLM's server, all resident, measured in turn round by round.

Machines differ and one machine's speed wanders; so what is compared is measured within seconds of each other,
in an order that rotates, and the ratios are taken round by round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import servers
from client import Clients
from processor_time import processor_seconds, since
from proof import Proof

Measure = Callable[[int, int], dict[str, Any]]
"""(streams, tokens) -> a row."""


def run_speed(proof: Proof) -> None:
    options = proof.options
    with Clients() as clients, _targets(proof, clients) as targets:
        for measure in targets.values():
            measure(max(options.streams), 64)  # What is compiled at first use.
        for number in range(options.rounds):
            for streams in options.streams:
                _round(proof, targets, streams, number)
    proof.facts["table"] = summary(proof.rows)
    for line in table(proof.facts["table"]):
        print(line, flush=True)


@contextmanager
def _targets(proof: Proof, clients: Clients) -> Iterator[dict[str, Measure]]:
    """All that is compared, ready. The stack is first: it fills the engine's cache for the others."""
    options = proof.options
    with ExitStack() as opened:
        settings = {"COG_WEIGHTS": str(proof.tar)}
        ours = opened.enter_context(servers.stack(proof, "stack", settings))
        proof.facts["stack_start_s"] = ours.seconds
        proof.say(f"stack: READY after {ours.seconds:.1f} s")
        others: dict[str, AbstractContextManager[Any]] = {
            f"in process, {mode}": servers.resident(proof, mode) for mode in options.references
        }
        if "openai" in options.peers:
            others["openai"] = servers.openai(proof)
        with ThreadPoolExecutor(len(others)) as pool:
            entered = list(pool.map(opened.enter_context, others.values()))
        proof.say(f"ready: {', '.join(others)}")
        targets: dict[str, Measure] = {}
        for name, other in zip(others, entered, strict=True):
            is_resident = isinstance(other, servers.Resident)
            targets[name] = other.measure if is_resident else _over_http(proof, clients, name, other)
        targets["slot"] = _over_http(proof, clients, "slot", ours.triton_url)
        targets["json"] = _over_http(proof, clients, "json", ours.cog_url)
        targets["sse"] = _over_http(proof, clients, "sse", ours.cog_url)
        yield targets


def _over_http(proof: Proof, clients: Clients, target: str, url: str) -> Measure:
    return lambda streams, tokens: clients.measure(target, url, proof.workload, streams, tokens)


def _round(proof: Proof, targets: dict[str, Measure], streams: int, number: int) -> None:
    names = list(targets)
    first = number % len(names)
    for name in names[first:] + names[:first]:
        before = processor_seconds()
        row = targets[name](streams, proof.options.tokens)
        proof.row({**row, "target": name, "round": number, "processor_s": since(before)})
    proof.save()


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each target and number of streams: medians over the rounds, and ratios taken within each round."""
    found = []
    for streams in dict.fromkeys(row["streams"] for row in rows):
        loads = [row for row in rows if row["streams"] == streams and "round" in row]
        targets = list(dict.fromkeys(row["target"] for row in loads))
        others = [name for name in targets if name.startswith("in process") or name == "openai"]
        for target in targets:
            mine = [row for row in loads if row["target"] == target]
            found.append(
                {
                    "streams": streams,
                    "target": target,
                    "tokens_per_second": statistics.median(row["tokens_per_second"] for row in mine),
                    "first_token_ms": _median([row["first_token_ms"] for row in mine]),
                    "of": {other: _ratio(loads, mine, other) for other in others},
                }
            )
    return found


def _ratio(loads: list[dict[str, Any]], mine: list[dict[str, Any]], other: str) -> float | None:
    """Median over the rounds of the speed as a multiple of the other's in that round."""
    beside = {each["round"]: each["tokens_per_second"] for each in loads if each["target"] == other}
    return _median(
        [row["tokens_per_second"] / beside[row["round"]] for row in mine if row["round"] in beside]
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    others = list(dict.fromkeys(other for each in found for other in each["of"]))
    yield f"| streams | target | tokens/s | first token, ms | {' | '.join(f'of {each}' for each in others)} |"
    yield f"| ---: | --- | ---: | ---: |{' ---: |' * len(others)}"
    for each in found:
        ratios = [each["of"].get(other) for other in others]
        cells = [
            str(each["streams"]),
            each["target"],
            f"{each['tokens_per_second']:,.0f}",
            "" if each["first_token_ms"] is None else f"{each['first_token_ms']:.1f}",
            *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
        ]
        yield f"| {' | '.join(cells)} |"
