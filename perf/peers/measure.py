"""Rounds of workloads on resident servers: figures of one client process, and the servers' costs."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from perf.load.clients import run
from perf.load.plan import Plan
from perf.load.summary import Summary, summarize
from perf.peers.requests import Prompts
from perf.peers.servers import Endpoint
from perf.peers.workloads import Words, Workload
from perf.processes import CORE, cpu_s_by_role, memory_bytes

_DURATION_S = 500.0
"""Time that is more than any closed loop takes."""
_TIMEOUT_S = 240.0


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
        folders = {each.engine.folder for each in endpoints.values()}
        tokenizers = {each: Tokenizer.from_file(str(each / "tokenizer.json")) for each in folders}
        self._words = {name: Words(tokenizers[at.engine.folder]) for name, at in endpoints.items()}

    def round(self, number: int) -> Iterator[Row]:
        """Measure each workload on each server, in random order."""
        for name, workload in self._workloads.items():
            for server in random.sample([*self._endpoints], len(self._endpoints)):
                yield self._measure(name, workload, server, number)

    def _measure(self, name: str, workload: Workload, server: str, number: int) -> Row:
        endpoint, words, count = self._endpoints[server], self._words[server], workload.requests
        streams = min(workload.streams, count)
        plan = Plan("concurrency", streams, _DURATION_S, most_requests=count, timeout_s=_TIMEOUT_S)
        endpoint.engine.set_step(workload.step_s)
        # Servers get words of their own: several share an engine, which keeps the prompts it has seen.
        prompts = words.prompts(workload, count, f"{self._seed} {number}", words=server)
        target = Prompts(endpoint, prompts, words.tokenizer)
        before = cpu_s_by_role(endpoint.session)
        summary = summarize(run(plan, target))
        spent = cpu_s_by_role(endpoint.session) - before
        return Row(name, server, number, summary, dict(spent), memory_bytes(endpoint.session))
