"""The rounds of ``perf peers`` over servers that are resident."""

import math
import random
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from errors.requests import InvalidInput
from perf.load.plan import arrivals
from perf.peers.engine import Engine
from perf.peers.measure import Row, closed_loop, measure, open_loop, texts
from perf.peers.servers import Endpoint
from perf.peers.workloads import CAPACITY, WORKLOADS, Prompts, Workload

_CHECKED = Workload(64, 64, (32, 128), (1, 64))


class Comparison:
    """Prompts are the same for the same ``seed``."""

    def __init__(self, endpoints: dict[str, Endpoint], engine: Engine, seed: str) -> None:
        self._endpoints = endpoints
        self._engine = engine
        self._tokenizer = Tokenizer.from_file(str(engine.folder / "tokenizer.json"))
        self._prompts = Prompts(self._tokenizer)
        self._seed = seed
        self._capacity_rps = 0.0

    def compare_texts(self) -> dict[str, int]:
        """Send each server the same prompts: how many of its texts are as those of the first server."""
        prompts = list(self._prompts.of(_CHECKED, _CHECKED.requests, self._seed))
        self._engine.set_step(0.0)
        found = {name: texts(each, prompts, self._tokenizer) for name, each in self._endpoints.items()}
        first = next(iter(found.values()))
        return {
            name: sum(a == b != "" for a, b in zip(mine, first, strict=True)) for name, mine in found.items()
        }

    def round(self, number: int, names: Sequence[str]) -> Iterator[Row]:
        """``names`` of workloads. The capacity is that of the best server in the first round."""
        for name in names:
            for row in self._on_all(name, WORKLOADS[name], number):
                if name == CAPACITY and number == 0:
                    self._capacity_rps = max(self._capacity_rps, row.requests_per_second)
                yield row

    def _on_all(self, name: str, workload: Workload, number: int) -> Iterator[Row]:
        self._engine.set_step(workload.step_s)
        if workload.share_of_capacity is None:
            plan, count = closed_loop(workload.streams, workload.requests), workload.requests
        else:
            plan = open_loop(workload.share_of_capacity * self._capacity_rps, workload.requests)
            count = len(list(arrivals(plan)))
        able = [each for each, at in self._endpoints.items() if not workload.is_whole or at.kind != "sse"]
        for server in random.sample(able, len(able)):
            prompts = list(self._prompts.of(workload, count, f"{self._seed} {number}", words=server))
            endpoint = self._endpoints[server]
            yield measure(name, server, number, endpoint, prompts, plan, is_whole=workload.is_whole)


def check_lengths(names: Sequence[str], engine: Engine) -> None:
    """Raises InvalidInput for a workload that is too long for the engine."""
    most_tokens = engine.arguments.get("max_model_len", math.inf)
    for name in names:
        if WORKLOADS[name].input_tokens[1] + WORKLOADS[name].output_tokens[1] > most_tokens:
            expected = f"of requests that fit the engine: at most {most_tokens} tokens"
            raise InvalidInput(name="workloads", expected=expected, value=name)


def with_capacity(names: Sequence[str]) -> list[str]:
    """The workloads, with that which measures the capacity where it is needed: first."""
    if CAPACITY not in names and any(WORKLOADS[name].share_of_capacity for name in names):
        return [CAPACITY, *names]
    return sorted(names, key=lambda name: name != CAPACITY)
