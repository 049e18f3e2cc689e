"""Rounds of workloads on servers that are resident: what one client process saw, and what they spent."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import urllib3
from tokenizers import Tokenizer

from perf.load.clients import run
from perf.load.plan import Plan, arrivals
from perf.load.summary import Summary, summarize
from perf.metrics import metrics
from perf.peers.requests import Prompts, posting
from perf.peers.servers import Endpoint
from perf.peers.workloads import CAPACITY, Prompt, Words, Workload
from perf.processes import CORE, cpu_s_by_role, memory_bytes

_DURATION_S = 500.0
"""More than any closed loop takes."""
_TIMEOUT_S = 240.0
_FREED_TIMEOUT_S = 60.0
_CHECKED = Workload(64, 64, (32, 128), (1, 64))
_DISCONNECTED = Workload(8, 8, (32, 128), (800, 800))
_SLOW_STEP_S = 0.05
_CACHE_USED = "cog_triton_engine_cache_used_ratio"
_CANCELLED = "cog_triton_slot_ended_requests_total reason=cancelled"


@dataclass(frozen=True)
class Row:
    """What one workload cost on one server. ``cpu_s`` is by role of process."""

    workload: str
    server: str
    round: int
    summary: Summary
    cpu_s: dict[str, float]
    memory_bytes: int

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    @property
    def front_cpu_s(self) -> float:
        """Without the engine core."""
        return sum(seconds for role, seconds in self.cpu_s.items() if role not in CORE)

    @property
    def not_served(self) -> int:
        return self.summary.requests - self.summary.completed


class Rounds:
    """Prompts are the same for the same ``seed``."""

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

    def check_texts(self) -> dict[str, int]:
        """Send the same prompts to all servers; return how many texts differ from the first one's."""
        found: dict[str, int] = {}
        firsts: dict[object, list[str]] = {}
        for name, endpoint in self._endpoints.items():
            endpoint.engine.set_step(0.0)
            words = self._words[name]
            target = Prompts(
                endpoint, words.prompts(_CHECKED, _CHECKED.requests, self._seed), words.tokenizer
            )
            run(_closed_loop(_CHECKED), target)
            texts = [target.texts.get(index, "") for index in range(_CHECKED.requests)]
            if endpoint.kind == "slot":
                texts = [str(words.tokenizer.decode(list(map(int, text.split())))) for text in texts]
            first = firsts.setdefault(endpoint.engine.folder, texts)
            found[name] = sum(not a == b != "" for a, b in zip(texts, first, strict=True))
        return found

    def check_freed(self) -> dict[str, bool]:
        """Disconnect streaming clients of our servers; return whether that frees what they had.

        Not of Triton itself: it writes until the answer ends, and only its front, at port 8000, cancels.
        """
        found = {}
        for name, endpoint in self._endpoints.items():
            if endpoint.metrics_url and not name.endswith(("slot", "cog-json")):
                endpoint.engine.set_step(_SLOW_STEP_S)
                found[name] = _frees(endpoint, self._words[name].prompts(_DISCONNECTED, 8, self._seed))
        return found

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
            plan = Plan("rps", rate, count / rate, is_poisson=True, timeout_s=_TIMEOUT_S)
            count = len(list(arrivals(plan)))
        able = [each for each, at in self._endpoints.items() if not workload.is_whole or at.kind != "sse"]
        for server in random.sample(able, len(able)):
            endpoint, words = self._endpoints[server], self._words[server]
            endpoint.engine.set_step(workload.step_s)
            # Servers get words of their own: several share an engine, which keeps the prompts it has seen.
            prompts = words.prompts(workload, count, f"{self._seed} {number}", words=server)
            target = Prompts(endpoint, prompts, words.tokenizer, is_streaming=not workload.is_whole)
            before = cpu_s_by_role(endpoint.session)
            summary = summarize(run(plan, target))
            spent = cpu_s_by_role(endpoint.session) - before
            yield Row(name, server, number, summary, dict(spent), memory_bytes(endpoint.session))


def _frees(endpoint: Endpoint, prompts: Sequence[Prompt]) -> bool:
    """Open streams, wait for their first bytes, and close the connections."""
    before = metrics(endpoint.metrics_url).get(_CANCELLED, 0)
    with ExitStack() as opened:
        for prompt in prompts:
            asked = posting(endpoint, prompt).request
            response = urllib3.request(
                asked.method, asked.url, headers=dict(asked.headers), body=asked.body, preload_content=False
            )
            opened.callback(response.close)
            response.read1()
    deadline_s = time.monotonic() + _FREED_TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = metrics(endpoint.metrics_url)
        if found.get(_CANCELLED, 0) - before == len(prompts) and not found.get(_CACHE_USED):
            return True
        time.sleep(0.2)
    return False


def _closed_loop(workload: Workload) -> Plan:
    streams = min(workload.streams, workload.requests)
    return Plan("concurrency", streams, _DURATION_S, most_requests=workload.requests, timeout_s=_TIMEOUT_S)
