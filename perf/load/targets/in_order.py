"""Requests that differ, each sent once."""

import multiprocessing
from collections.abc import Sequence

from perf.load.http import HttpClient
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.target import Posting, Target


class InOrder(Target):
    """Sends the request of each of ``targets``, all of one server, whichever client process begins it."""

    def __init__(self, targets: Sequence[Posting]) -> None:
        self.url = targets[0].url
        self._targets = targets
        for target in targets:
            assert target.request.encoded  # Takes no time from the load.
        self._next = multiprocessing.get_context("spawn").Value("i", 0)
        self._index_by_response: dict[int, int] = {}

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        with self._next.get_lock():
            index = int(self._next.value)
            self._next.value += 1
        responses = await self._targets[index].exchange(http)
        self._index_by_response[id(responses[-1])] = index
        return responses

    def read(self, responses: Sequence[Response]) -> Answer:
        index = self._index_by_response[id(responses[-1])]
        return self.read_one(index, self._targets[index].read(responses), responses[-1])

    def read_one(self, index: int, answer: Answer, response: Response) -> Answer:
        """What is recorded of the answer to the request ``index``."""
        return answer
