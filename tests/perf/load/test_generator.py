"""Load tests against a server that does what it is told: nothing is lost, nothing is glossed over."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from perf.load.generator import Run, joined, run
from perf.load.http import HttpClient, Request
from perf.load.plan import Plan
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.summary import summarize
from tests.perf.load import records as made
from tests.scripted_server import Asked, ScriptedServer, Write, json_answer


class Plain:
    """The simplest target: an answer of 200 is one token."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._request = Request("POST", url, {})

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        return [await http.send(self._request)]

    def read(self, responses: Sequence[Response]) -> Answer:
        if responses[-1].body == b"nonsense":
            raise ValueError("nonsense")
        return Answer(output_tokens=1)


class Counting:
    """Answers once it holds ``together`` requests, and counts how many it holds at most."""

    def __init__(self, together: int) -> None:
        self._all_are_here = threading.Barrier(together)
        self._guard = threading.Lock()
        self._held = 0
        self.most_held = 0

    def __call__(self, asked: Asked, write: Write) -> bool:
        with self._guard:
            self._held += 1
            self.most_held = max(self.most_held, self._held)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._all_are_here.wait(240)
        with self._guard:
            self._held -= 1
        write(json_answer("{}"))
        return True


def test_a_batch_is_all_at_once_and_the_next_begins_when_all_are_answered() -> None:
    answer = Counting(20)
    with ScriptedServer(answer) as server:
        done = run(Plan("batch", 20, 0.5, pause_s=0.1), Plain(server.url))
    summary = summarize(done)
    assert answer.most_held == summary.concurrency.max == 20
    assert summary.completed == summary.requests == len(server.asked) >= 20
    assert summary.requests % 20 == 0
    batches = [done.records[start : start + 20] for start in range(0, summary.requests, 20)]
    for before, after in pairwise(batches):
        assert max(record.ended_s for record in before) < min(record.sent_s for record in after)


def test_a_fixed_concurrency_is_never_exceeded() -> None:
    answer = Counting(1)
    with ScriptedServer(answer) as server:
        summary = summarize(run(Plan("concurrency", 7, 0.4), Plain(server.url)))
        assert summary.completed == len(server.asked)
        ended = summarize(run(Plan("concurrency", 7, 60.0, most_requests=20), Plain(server.url)))
    assert answer.most_held <= summary.concurrency.max == 7
    assert ended.completed == 20


@pytest.mark.slow
def test_an_open_loop_does_not_wait_and_counts_what_a_stalled_server_costs() -> None:
    """The first answer takes half a second; who is sent meanwhile waits as well, and all of it shows."""
    gate = threading.Event()

    def answer(asked: Asked, write: Write) -> bool:
        if asked.number == 0:
            time.sleep(0.5)
            gate.set()
        gate.wait(240)
        write(json_answer("{}"))
        return True

    with ScriptedServer(answer) as server:
        records = run(Plan("rps", 20, 0.5), Plain(server.url)).records
    assert len(records) == 10
    assert [record.scheduled_s for record in records] == pytest.approx([index * 0.05 for index in range(10)])
    for record in records:
        assert record.sent_s >= record.scheduled_s
        assert record.latency_s >= 0.5 - record.scheduled_s - 0.01


def test_failures_are_counted_by_reason_and_stop_nothing() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        if asked.number % 3 == 0:
            return False
        write(json_answer("nonsense" if asked.number % 3 == 1 else "{}"))
        return False

    with ScriptedServer(answer) as server:
        summary = summarize(run(Plan("rps", 60, 0.5), Plain(server.url)))
    assert summary.requests == len(server.asked) == 30
    assert (summary.completed, summary.failed) == (10, 20)
    assert sorted(summary.errors.values()) == [10, 10]
    assert any("nonsense" in error for error in summary.errors)
    assert summary.failure_rate == 2 / 3


def test_joined_runs_have_the_time_and_the_cost_of_all() -> None:
    runs = [Run([made.record(0, 1), made.record(0, end)], 0.5, Counter({"other": 2.0})) for end in (2, 3, 2)]
    done = joined(runs)
    assert [each.ended_s for each in done.records] == [1, 2, 3, 5, 6, 7]
    assert (done.duration_s, done.client_cpu_s, done.server_cpu_s) == (7, 1.5, {"other": 6.0})
    summary = summarize(done)
    assert summary.requests_per_second == 6 / 7
    assert summary.concurrency.max == 2


def test_reading_the_answers_is_no_cost_of_the_load() -> None:
    class Slow(Plain):
        def read(self, responses: Sequence[Response]) -> Answer:
            end_s = time.process_time() + 1
            while time.process_time() < end_s:
                pass
            return super().read(responses)

    with ScriptedServer(lambda asked, write: bool(write(json_answer("{}"))) or True) as server:
        done = run(Plan("concurrency", 1, 1e6, most_requests=2), Slow(server.url), os.getpid())
    assert len(done.records) == 2
    assert done.client_cpu_s < 1
