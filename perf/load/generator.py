"""Send a plan's requests from this process, and read what came back once all is over.

CPU time is that of the load alone, without the reading.
"""

import asyncio
import gc
import math
import resource
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from errors.requests import InvalidInput
from perf.load.http import HttpClient, RequestFailed
from perf.load.plan import Plan, arrivals
from perf.load.record import Answer, Record
from perf.load.response import Response
from perf.load.targets.target import Target
from perf.processes import cpu_s_by_role

_MOST_UNREAD_BYTES = 256 << 20
"""Size of the unread answers above which they are read before the end: reading disturbs the times taken."""
_OTHER_FILES = 64
"""Open files of this process that are no connections, at most."""


@dataclass(frozen=True)
class Run:
    """A load test that was run: its records in order, and what it cost on both sides."""

    records: list[Record] = field(repr=False)
    client_cpu_s: float
    server_cpu_s: Counter[str] = field(default_factory=Counter)
    """Seconds by role of process; empty where the server's process session is not known."""

    @property
    def duration_s(self) -> float:
        return max((record.ended_s for record in self.records), default=0.0)


class Generator:
    def __init__(self, plan: Plan, target: Target, session: int | None = None) -> None:
        self._plan = plan
        self._target = target
        self._session = session
        self._http = HttpClient(plan.timeout_s)
        self._unread: deque[tuple[float, float, float, Sequence[Response]]] = deque()
        self._unread_bytes = 0
        self._records: list[Record] = []
        self._left = plan.most_requests or math.inf
        self.started_s = self.client_cpu_s = 0.0
        self.server_cpu_s: Counter[str] = Counter()

    async def run(self) -> list[Record]:
        """Return the records of all requests. Times are of ``time.perf_counter``, as is ``started_s``."""
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._plan.most_at_once > most_files - _OTHER_FILES:
            expected = f"at most {most_files - _OTHER_FILES}, by this process's limit of open files"
            raise InvalidInput(name="rate", expected=expected, value=self._plan.rate)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
        await self._http.prepare(self._target.url, self._plan.most_at_once)
        gc.collect()
        gc.disable()  # A collection would stop the clock of every stream.
        servers_s, own_s = self._servers_cpu_s(), time.process_time()
        try:
            self.started_s = time.perf_counter()
            if self._plan.unit == "rps":
                await self._open_loop()
            elif self._plan.unit == "batch":
                await self._batches()
            else:
                await asyncio.gather(*(self._one_after_another() for _ in range(self._plan.most_at_once)))
            self.client_cpu_s = time.process_time() - own_s
            self.server_cpu_s = self._servers_cpu_s() - servers_s
        finally:
            gc.enable()
            self._http.close()
        while self._unread:
            self._read_next()
        return self._records

    def _servers_cpu_s(self) -> Counter[str]:
        return Counter() if self._session is None else cpu_s_by_role(self._session)

    async def _open_loop(self) -> None:
        running: set[asyncio.Task[None]] = set()
        for arrival_s in list(arrivals(self._plan)):
            scheduled_s = self.started_s + arrival_s
            if (delay_s := scheduled_s - time.perf_counter()) > 0:
                await asyncio.sleep(delay_s)
            task = asyncio.create_task(self._request(scheduled_s))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _batches(self) -> None:
        end_s = self.started_s + self._plan.duration_s
        while time.perf_counter() < end_s:
            scheduled_s = time.perf_counter()
            await asyncio.gather(*(self._request(scheduled_s) for _ in range(self._plan.most_at_once)))
            await asyncio.sleep(min(self._plan.pause_s, max(end_s - time.perf_counter(), 0)))

    async def _one_after_another(self) -> None:
        end_s = self.started_s + self._plan.duration_s
        while self._left and (now_s := time.perf_counter()) < end_s:
            self._left -= 1
            await self._request(now_s)

    async def _request(self, scheduled_s: float) -> None:
        sent_s = time.perf_counter()
        try:
            responses = await self._target.exchange(self._http)
        except RequestFailed as exc:
            answer = Answer(outcome="failed", error=str(exc))
            self._records.append(Record(scheduled_s, sent_s, time.perf_counter(), answer))
            return
        pieces = responses[-1].pieces
        ended_s = pieces[-1][0] if pieces else time.perf_counter()
        self._unread.append((scheduled_s, sent_s, ended_s, responses))
        self._unread_bytes += _size_bytes(responses)
        while self._unread_bytes > _MOST_UNREAD_BYTES:
            self._read_next()

    def _read_next(self) -> None:
        scheduled_s, sent_s, ended_s, responses = self._unread.popleft()
        self._unread_bytes -= _size_bytes(responses)
        try:
            answer = self._target.read(responses)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            text = responses[-1].body[:100].decode(errors="replace")
            reason = f"an answer that {self._target.url} should not give ({exc}): {text!r}"
            answer = Answer(outcome="failed", error=reason)
        self._records.append(Record(scheduled_s, sent_s, ended_s, answer))


def run(plan: Plan, target: Target, session: int | None = None) -> Run:
    """Run the whole plan. Records come in the order of their schedule. ``session`` is the server's."""
    generator = Generator(plan, target, session)
    records = asyncio.run(generator.run())
    return Run(_since(generator.started_s, records), generator.client_cpu_s, generator.server_cpu_s)


def joined(runs: Iterable[Run]) -> Run:
    """Return the runs as one, in which each begins when the one before it has ended."""
    records: list[Record] = []
    client_s, servers_s = 0.0, Counter[str]()
    for each in runs:
        records += _since(-max((record.ended_s for record in records), default=0.0), each.records)
        client_s, servers_s = client_s + each.client_cpu_s, servers_s + each.server_cpu_s
    return Run(records, client_s, servers_s)


async def run_together(loads: Sequence[tuple[Plan, Target]]) -> list[list[Record]]:
    return list(await asyncio.gather(*(Generator(plan, target).run() for plan, target in loads)))


def _size_bytes(responses: Sequence[Response]) -> int:
    return sum(len(data) for each in responses for _, data in each.pieces)


def _since(start_s: float, records: Iterable[Record]) -> list[Record]:
    """Return the records with times that count from ``start_s``."""
    ordered = sorted(records, key=lambda record: record.scheduled_s)
    for record in ordered:
        record.scheduled_s -= start_s
        record.sent_s -= start_s
        record.ended_s -= start_s
        record.answer.output_s = array("d", (at_s - start_s for at_s in record.answer.output_s))
    return ordered
