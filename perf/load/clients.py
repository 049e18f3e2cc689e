"""Run a load test from this process, or from several where one is too slow."""

import asyncio
import multiprocessing
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from perf.load.generator import Generator
from perf.load.plan import Plan
from perf.load.record import Record
from perf.load.targets.target import Target

_RENDEZVOUS_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Run:
    """A load test that was run: its records in order, and what it cost on this side."""

    processes: int
    records: list[Record] = field(repr=False)
    client_cpu_s: float

    @property
    def duration_s(self) -> float:
        """Time until the last answer."""
        return max((record.ended_s for record in self.records), default=0.0)


def run(plan: Plan, target: Target, processes: int = 1) -> Run:
    """Run the whole plan. Records come from all client processes, in the order of their schedule."""
    if processes == 1:
        cpu_before_s = time.process_time()
        generator = Generator(plan, target)
        records = asyncio.run(generator.run())
        return Run(1, _since(generator.started_s, records), time.process_time() - cpu_before_s)
    shares = plan.shares(processes)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(shares), timeout=_RENDEZVOUS_TIMEOUT_S)
    children = []
    for share in shares:
        ours, theirs = context.Pipe(duplex=False)
        context.Process(target=_child, args=(share, target, barrier, theirs), daemon=True).start()
        theirs.close()
        children.append(ours)
    parts, starts_s, cpu_s = zip(*(connection.recv() for connection in children), strict=True)
    return Run(len(shares), _since(min(starts_s), chain.from_iterable(parts)), sum(cpu_s))


def _child(plan: Plan, target: Target, barrier: Barrier, results: Connection) -> None:
    cpu_before_s = time.process_time()
    generator = Generator(plan, target, barrier.wait)
    records = asyncio.run(generator.run())
    results.send((records, generator.started_s, time.process_time() - cpu_before_s))


def _since(start_s: float, records: Iterable[Record]) -> list[Record]:
    """Return the records with times that count from the start; all processes have the same clock."""
    ordered = sorted(records, key=lambda record: record.scheduled_s)
    for record in ordered:
        record.scheduled_s -= start_s
        record.sent_s -= start_s
        record.ended_s -= start_s
        record.answer.output_s = array("d", (at_s - start_s for at_s in record.answer.output_s))
    return ordered
