"""Run a load test from this process, or from several where one is too slow."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from errors.requests import InvalidInput
from perf.load.generator import Generator
from perf.load.plan import Plan, arrivals
from perf.load.record import Record
from perf.load.targets.target import Target

_RENDEZVOUS_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Run:
    """A load test that was run: its records in order, and what it cost on this side."""

    plan: Plan
    processes: int
    records: list[Record] = field(repr=False)
    client_cpu_s: float

    @property
    def duration_s(self) -> float:
        """Until the last answer."""
        return max((record.ended_s for record in self.records), default=0.0)


def run(plan: Plan, target: Target, processes: int = 1) -> Run:
    """Run the whole plan. Records come from all client processes, in the order of their schedule."""
    if processes < 1:
        raise InvalidInput(name="processes", expected="at least 1", value=processes)
    if processes == 1:
        cpu_before_s = time.process_time()
        records = asyncio.run(Generator(plan, target).run())
        return Run(plan, 1, records, time.process_time() - cpu_before_s)
    return _run_in_processes(plan, target, processes)


def _run_in_processes(plan: Plan, target: Target, processes: int) -> Run:
    shares = _shares(plan, processes)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(shares), timeout=_RENDEZVOUS_TIMEOUT_S)
    children = []
    for share, arrivals_s in shares:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(share, target, arrivals_s, barrier, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, ours))
    records: list[Record] = []
    cpu_s = 0.0
    for child, connection in children:
        its_records, its_cpu_s = connection.recv()
        records += its_records
        cpu_s += its_cpu_s
        child.join()
    records.sort(key=lambda record: record.scheduled_s)
    return Run(plan, len(shares), records, cpu_s)


def _shares(plan: Plan, processes: int) -> list[tuple[Plan, Sequence[float] | None]]:
    if plan.unit == "rps":
        times = list(arrivals(plan))
        return [(plan, times[index::processes]) for index in range(processes)]
    return [(share, None) for share in plan.shares(processes)]


def _child(
    plan: Plan, target: Target, arrivals_s: Sequence[float] | None, barrier: Barrier, results: Connection
) -> None:
    generator = Generator(plan, target, barrier.wait)
    records = asyncio.run(generator.run(arrivals_s))
    results.send((records, time.process_time()))
