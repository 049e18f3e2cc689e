"""Admission to Triton, which takes memory for each call: few begin at once, one per connection in turn."""

import asyncio
import math
import time
from collections.abc import Callable

_POLL_S = 0.02


class CallStart:
    """A call that waits, or that Triton begins; ``end`` it once Triton has answered."""

    def __init__(self, starts: "Starts", client: object, begin: Callable[[], None]) -> None:
        self._starts = starts
        self.client = client
        self.begin = begin
        self.is_cancelled = False
        """The client has disconnected: the call counts until Triton has ended it."""
        self.on_refusal: Callable[[], None] | None = None
        """Function called instead of ``begin`` if the call gives way to another client's."""

    def end(self) -> None:
        """End the start; if it still waits, it does not begin."""
        self._starts.end(self)


class Starts:
    """Queue of calls, of which ``limit`` begin at once. After ``begin_s`` one has begun without an answer."""

    def __init__(self, limit: int, begin_s: float = math.inf) -> None:
        self._limit = limit
        self._begin_s = begin_s
        self._begun: dict[CallStart, float] = {}
        """Calls that Triton begins, with the time."""
        self._waiting: dict[object, dict[CallStart, None]] = {}
        """Waiting calls by client connection; that whose turn is next is the first."""
        self._is_polling = False

    def add(self, client: object, begin: Callable[[], None]) -> CallStart:
        """Call ``begin`` now, or when it is its turn."""
        start = CallStart(self, client, begin)
        self._waiting.setdefault(client, {})[start] = None
        self._begin_waiting()
        return start

    def end(self, start: CallStart) -> None:
        if self._begun.pop(start, None) is not None:
            self._begin_waiting()
        else:
            self._remove(start)

    def make_room(self, client: object) -> bool:
        """Refuse the last of the client with the most waiting calls, unless ``client`` has about as many."""
        most = max(self._waiting.values(), key=len, default={})
        if len(most) <= len(self._waiting.get(client, ())) + 1:
            return False
        start = next(reversed(most))
        self._remove(start)
        if start.on_refusal is not None:
            start.on_refusal()
        return True

    def _begin_waiting(self) -> None:
        while self._waiting and self._has_place():
            client, waiting = next(iter(self._waiting.items()))
            start = next(iter(waiting))
            self._remove(start)
            if waiting:  # The next turn is another client's.
                del self._waiting[client]
                self._waiting[client] = waiting
            self._begun[start] = time.monotonic()
            start.begin()
        if self._waiting and not self._is_polling and self._begin_s < math.inf:
            self._is_polling = True
            asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._is_polling = False
        self._begin_waiting()

    def _has_place(self) -> bool:
        if len(self._begun) >= self._limit:
            end_s = time.monotonic() - self._begin_s
            self._begun = {
                each: at_s for each, at_s in self._begun.items() if at_s > end_s or each.is_cancelled
            }
        return len(self._begun) < self._limit

    def _remove(self, start: CallStart) -> None:
        waiting = self._waiting.get(start.client)
        if waiting is not None and waiting.pop(start, start) is None and not waiting:
            del self._waiting[start.client]
