"""The engine in its own process, our layers and vLLM's server, all resident, measured in turn round by round.

Machines differ and one machine's speed wanders; so what is compared is measured within seconds of each other,
in an order that rotates, and the ratios are taken round by round.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from perf.processes import OTHER, SIGNS, cpu_s_by_role
from perf.prove_gpu import servers
from perf.prove_gpu.client import Clients
from perf.prove_gpu.proof import Proof
from perf.table import table

Measure = Callable[[int, int, float], dict[str, Any]]
"""(streams, tokens, seconds between their beginnings) -> a row."""

_SIGNS = (
    ("VLLM::EngineCore", "engine core"),
    ("VLLM::Worker", "engine GPU worker"),
    ("multiprocessing.spawn", "client"),
    ("perf.prove_gpu.resident", "in process"),
    ("openai.api_server", "OpenAI server"),
    *SIGNS,
)
"""Whose processor time is recorded for each load; of what else runs here too."""
ASYNC, OPENAI, OUR_OPENAI = "in process, async", "openai", "openai, ours"


def run_speed(proof: Proof) -> None:
    options = proof.options
    with Clients() as clients, _targets(proof, clients) as targets:
        for measure in targets.values():
            measure(max(options.streams), 64, 0.0)  # What is compiled at first use.
        for number in range(options.rounds):
            for streams, gap_s in _loads(options.streams, options.gap_ms / 1000):
                _round(proof, targets, streams, gap_s, number)
    proof.facts["table"] = summary(proof.rows)
    print(summary_table(proof.facts["table"]), flush=True)


def _loads(all_streams: Sequence[int], gap_s: float) -> Iterator[tuple[int, float]]:
    """Each begun together; one also one after the other, as streams come to a server that has work."""
    several = [streams for streams in all_streams if streams > 1]
    for streams in all_streams:
        yield streams, 0.0
        if gap_s and several and streams == min(several):
            yield streams, gap_s


@contextmanager
def _targets(proof: Proof, clients: Clients) -> Iterator[dict[str, Measure]]:
    """All that is compared, ready. The stack is first: it fills the engine's cache for the others."""
    options = proof.options
    with ExitStack() as opened:
        settings = {"COG_WEIGHTS": str(proof.tar)}
        ours = opened.enter_context(servers.stack(proof, "stack", settings))
        proof.facts["stack_start_s"] = ours.start_s
        proof.say(f"stack: READY after {ours.start_s:.1f} s")
        others: dict[str, AbstractContextManager[Any]] = {ASYNC: servers.resident(proof)}
        if OPENAI in options.peers:
            others[OPENAI] = servers.openai(proof)
        with ThreadPoolExecutor(len(others)) as pool:
            entered = list(pool.map(opened.enter_context, others.values()))
        proof.say(f"ready: {', '.join(others)}")
        targets: dict[str, Measure] = {}
        for name, other in zip(others, entered, strict=True):
            is_resident = isinstance(other, servers.Resident)
            targets[name] = other.measure if is_resident else _over_http(proof, clients, OPENAI, other)
        targets[OUR_OPENAI] = _over_http(proof, clients, OPENAI, ours.openai_url)
        targets["slot"] = _over_http(proof, clients, "slot", ours.triton_url)
        targets["json"] = _over_http(proof, clients, "json", ours.cog_url)
        targets["sse"] = _over_http(proof, clients, "sse", ours.cog_url)
        yield targets


def _over_http(proof: Proof, clients: Clients, target: str, url: str) -> Measure:
    def measure(streams: int, tokens: int, gap_s: float) -> dict[str, Any]:
        return clients.measure(target, url, proof.workload, streams, tokens, gap_s)

    return measure


def _round(proof: Proof, targets: dict[str, Measure], streams: int, gap_s: float, number: int) -> None:
    names = list(targets)
    first = number % len(names)
    for name in names[first:] + names[:first]:
        before = cpu_s_by_role(None, _SIGNS)
        row = targets[name](streams, proof.options.tokens, gap_s)
        facts = {"target": name, "round": number, "gap_s": gap_s, "processor_s": _spent(before)}
        proof.row({**row, **facts})
    proof.save()


def _spent(before: Counter[str]) -> dict[str, float]:
    """Processor seconds of each role since ``before``, where it shows."""
    spent = cpu_s_by_role(None, _SIGNS) - before
    return {role: round(seconds, 2) for role, seconds in spent.items() if seconds >= 0.05 and role != OTHER}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each load and target: medians over the rounds, and what is compared taken within each round."""
    rounds = [row for row in rows if "round" in row]
    found = []
    for streams, gap_s in dict.fromkeys((row["streams"], row["gap_s"]) for row in rounds):
        loads = [row for row in rounds if (row["streams"], row["gap_s"]) == (streams, gap_s)]
        targets = list(dict.fromkeys(row["target"] for row in loads))
        others = [name for name in targets if name.startswith("in process") or name == OPENAI]
        for target in targets:
            mine = [row for row in loads if row["target"] == target]
            found.append(
                {
                    "streams": streams,
                    "gap_s": gap_s,
                    "target": target,
                    "tokens_per_second": statistics.median(row["tokens_per_second"] for row in mine),
                    "first_token_ms": _median([row["first_token_ms"] for row in mine]),
                    "first_token_added_ms": _added_ms(loads, mine),
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


def _added_ms(loads: list[dict[str, Any]], mine: list[dict[str, Any]]) -> float | None:
    """Median over the rounds of the time to first token beyond ``AsyncLLM``'s in that round."""
    alone = {each["round"]: each["first_token_ms"] for each in loads if each["target"] == ASYNC}
    pairs = [(row["first_token_ms"], alone.get(row["round"])) for row in mine if row["target"] != ASYNC]
    return _median([a - b for a, b in pairs if a is not None and b is not None])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def summary_table(found: list[dict[str, Any]]) -> str:
    """Markdown."""
    others = list(dict.fromkeys(other for each in found for other in each["of"]))
    head = [
        "target",
        "streams",
        "tokens/s",
        "first token, ms",
        "added, ms",
        *(f"of {each}" for each in others),
    ]
    return table(head, [_cells(each, others) for each in found])


def _cells(each: dict[str, Any], others: Sequence[str]) -> list[str]:
    gap_ms = each["gap_s"] * 1000
    ratios = [each["of"].get(other) for other in others]
    return [
        each["target"],
        f"{each['streams']}{f', one every {gap_ms:g} ms' if gap_ms else ''}",
        f"{each['tokens_per_second']:,.0f}",
        _tenths(each["first_token_ms"]),
        _tenths(each["first_token_added_ms"]),
        *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
    ]


def _tenths(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
