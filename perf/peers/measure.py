"""Rounds of workloads on resident servers: figures of one client process, and the servers' costs."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from perf.load.generator import run
from perf.load.plan import Plan, arrivals
from perf.load.summary import Summary, summarize
from perf.peers.requests import Prompts
from perf.peers.servers import Endpoint
from perf.peers.workloads import CAPACITY, Words, Workload
from perf.processes import CORE, memory_bytes

_DURATION_S = 1e6
"""Time that is more than any closed loop takes."""
_TIMEOUT_S, _TOKEN_TIMEOUT_S = 240.0, 0.5
"""Time for a request, and for each of its output tokens."""
_WARM_UP = Workload(64, 64, (32, 32), (8, 8))


@dataclass(frozen=True)
class Row:
    """Cost of one workload on one server. ``cpu_s`` is by role of process."""

    workload: str
    server: str
    round: int
    summary: Summary
    cpu_s: dict[str, float]
    memory_bytes: int

    @property
    def front_cpu_s(self) -> float:
        """CPU time without the engine core's."""
        return sum(seconds for role, seconds in self.cpu_s.items() if role not in CORE)

    @property
    def not_served(self) -> int:
        return self.summary.requests - self.summary.completed


class Rounds:
    """Rounds, whose prompts are the same for the same ``seed``."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], workloads: Mapping[str, Workload], seed: str
    ) -> None:
        self._endpoints = endpoints
        self._workloads = workloads
        self._seed = seed
        self._capacity_rps = 0.0
        folders = {each.engine.folder for each in endpoints.values()}
        tokenizers = {each: Tokenizer.from_file(str(each / "tokenizer.json")) for each in folders}
        self._words = {name: Words(tokenizers[at.engine.folder]) for name, at in endpoints.items()}

    def warm_up(self) -> None:
        """Put a load on each server that is not measured: the first requests of a server take longer."""
        for _ in self._on_all("warm-up", _WARM_UP, -1):
            pass

    def round(self, number: int) -> Iterator[Row]:
        """Measure each workload on each server, in random order. The first round finds the capacity."""
        for name, workload in self._workloads.items():
            for row in self._on_all(name, workload, number):
                if name == CAPACITY and number == 0:
                    self._capacity_rps = max(self._capacity_rps, row.summary.requests_per_second)
                yield row

    def _on_all(self, name: str, workload: Workload, number: int) -> Iterator[Row]:
        plan, count = _closed_loop(workload), workload.requests
        if workload.share_of_capacity is not None:
            rate = workload.share_of_capacity * self._capacity_rps
            if not rate:  # The capacity is not known: every request failed.
                return
            plan = Plan("rps", rate, count / rate, is_poisson=True, timeout_s=_timeout_s(workload))
            count = len(list(arrivals(plan)))
        able = [each for each, at in self._endpoints.items() if not workload.is_whole or at.kind != "sse"]
        for server in random.sample(able, len(able)):
            endpoint, words = self._endpoints[server], self._words[server]
            endpoint.engine.set_step(workload.step_s)
            # Servers get words of their own: several share an engine, which keeps the prompts it has seen.
            prompts = words.prompts(workload, count, f"{self._seed} {number}", words=server)
            target = Prompts(endpoint, prompts, words.tokenizer, is_streaming=not workload.is_whole)
            done = run(plan, target, endpoint.session)
            memory = memory_bytes(endpoint.session)
            yield Row(name, server, number, summarize(done), dict(done.server_cpu_s), memory)


def _closed_loop(workload: Workload) -> Plan:
    streams = min(workload.streams, workload.requests)
    timeout_s = _timeout_s(workload)
    return Plan("concurrency", streams, _DURATION_S, most_requests=workload.requests, timeout_s=timeout_s)


def _timeout_s(workload: Workload) -> float:
    return _TIMEOUT_S + _TOKEN_TIMEOUT_S * workload.output_tokens[1]
