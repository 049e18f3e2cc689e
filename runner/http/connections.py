"""All connections of a server: how many there are, and how much they have sent that is not yet used.

A connection is *idle*, its request is *arriving*, or it waits for an answer. When there are too many, one
that waits for its client makes room: the oldest idle one, else the one whose request began to arrive first.
If all wait for answers, the new one is refused.

Bytes of requests count until the request is used: the application has released it, or has answered. When
there are too many, large requests wait unread until there is room (``hold``), and the slowest of those that
are arriving is refused. Small requests never wait.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from errors.api import ReceivingTooMuch, RequestNotReceived, TooManyConnections
from errors.coded_error import CodedError
from runner.supervision.turns import Turns

BUFFER_BYTES = 4 << 20
"""Size of all requests together, beyond the largest that is accepted."""
_SMALL_BYTES = 1 << 16
_MIN_AGE_S = 0.25
_MIN_IDLE_S = 1.0
_SLOW_BYTES_PER_S = 2 << 20
"""Rate below which a request of that age is slow, and may be refused if there is no room."""


@dataclass(frozen=True)
class Limits:
    max_connections: int
    max_head_bytes: int
    max_body_bytes: int
    receive_timeout_s: float
    idle_timeout_s: float = 75.0
    """Time of an idle connection: longer than clients and proxies keep one, so none uses one we close."""


class Connection(Protocol):
    buffered_bytes: int

    def hold(self) -> None: ...
    def resume(self) -> None: ...

    def close_with(self, error: CodedError | None) -> None:
        """Close the connection, after an answer if its client waits for one."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read."""

    def abort(self) -> None: ...

    def shut_down(self) -> None:
        """Close the connection, once what was received is answered."""


@dataclass
class _Arrival:
    """Time when a request began to arrive, and for which its connection was not read."""

    began_s: float
    held_since_s: float | None = None
    held_s: float = 0.0

    def age_s(self, now_s: float) -> float:
        return (self.held_since_s or now_s) - self.began_s - self.held_s


class Connections:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turns = Turns()
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that answer requests."""
        self._max_buffered_bytes = limits.max_body_bytes + BUFFER_BYTES
        self._buffered_bytes = 0
        self._all: set[Connection] = set()
        self._idle: dict[Connection, float] = {}
        """Idle connections with the times since they are idle, the oldest first."""
        self._unread: set[Connection] = set()
        """Connections that have not begun a request yet."""
        self._arriving: dict[Connection, _Arrival] = {}
        self._held: dict[Connection, None] = {}
        self._favoured: Connection | None = None
        """Connection that is read although there is no room, so that one request always goes on."""

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    @property
    def has_room(self) -> bool:
        """True if a further connection would be accepted, maybe in place of another."""
        return len(self._all) < self.limits.max_connections or self._gives_way() is not None

    def opened(self, connection: Connection) -> None:
        """Add a connection that was accepted. It may be refused at once."""
        if len(self._all) >= self.limits.max_connections:
            waiting = self._gives_way()
            if waiting is None:
                connection.close_with(TooManyConnections(max_connections=self.limits.max_connections))
                return
            waiting.abort()  # It would stay open until its client has read all answers.
            self.closed(waiting)
        self._all.add(connection)
        self._unread.add(connection)
        self._idle[connection] = time.monotonic()

    def _gives_way(self) -> Connection | None:
        """Return the oldest idle connection, else the one whose request began first.

        A connection that was accepted only just now is not idle: its request may be there, and not read yet.
        """
        idle = next(iter(self._idle), None)
        arriving = next(iter(self._arriving), None)
        if idle is None or arriving is None:
            return idle or arriving
        is_new = idle in self._unread and time.monotonic() - self._idle[idle] < _MIN_IDLE_S
        return arriving if is_new else idle

    def closed(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._unread.discard(connection)
        self._idle.pop(connection, None)
        self._end_arrival(connection)
        self.release(connection)

    def refused(self, connection: Connection) -> None:
        """Call this after refusing a connection. It may be evicted until its client has read the answer."""
        self._end_arrival(connection)
        self.release(connection)
        self._unread.discard(connection)
        if connection in self._all:
            self._idle.setdefault(connection, time.monotonic())

    def request_began(self, connection: Connection) -> None:
        self._unread.discard(connection)
        self._idle.pop(connection, None)
        self._arriving.setdefault(connection, _Arrival(time.monotonic()))

    def request_arrived(self, connection: Connection) -> None:
        self._end_arrival(connection)

    def response_ended(self, connection: Connection) -> None:
        self.release(connection)
        if connection in self._all and connection not in self._arriving:
            self._idle[connection] = time.monotonic()

    def received(self, connection: Connection, num_bytes: int) -> None:
        """Count bytes of a request that is arriving."""
        connection.buffered_bytes += num_bytes
        self._buffered_bytes += num_bytes
        if not self._is_full():
            return
        self._refuse_slowest()
        may_go_on = connection is self._favoured or connection.buffered_bytes <= _SMALL_BYTES
        arrival = self._arriving.get(connection)
        if self._is_full() and arrival is not None and arrival.held_since_s is None and not may_go_on:
            arrival.held_since_s = time.monotonic()
            self._held[connection] = None
            connection.hold()

    def release(self, connection: Connection) -> None:
        """Stop counting the connection's bytes: they are used, or gone."""
        self._buffered_bytes -= connection.buffered_bytes
        connection.buffered_bytes = 0
        while self._held and not self._is_full():
            self._resume_first()

    def tick(self) -> None:
        """Enforce the time limits. Called every tenth of a second."""
        now_s = time.monotonic()
        timeout_s = self.limits.receive_timeout_s
        for connection, arrival in list(self._arriving.items()):
            if now_s - arrival.began_s < timeout_s:
                break
            connection.close_with(RequestNotReceived(timeout_s=timeout_s))
            self.refused(connection)
        for connection, since_s in list(self._idle.items()):
            if now_s - since_s < self.limits.idle_timeout_s:
                break
            connection.close_with(None)
            self.closed(connection)
        if self._held and self._is_full():
            self._refuse_slowest()
            received_bytes = sum(each.buffered_bytes for each in self._arriving)
            if self._held and self._favoured is None and received_bytes == self._buffered_bytes:
                self._favoured = next(iter(self._held))
                self._resume_first()

    def _is_full(self) -> bool:
        return self._buffered_bytes > self._max_buffered_bytes

    def _resume_first(self) -> None:
        self._end_hold(next(iter(self._held)))

    def _end_hold(self, connection: Connection) -> None:
        del self._held[connection]
        arrival = self._arriving[connection]
        assert arrival.held_since_s is not None
        arrival.held_s += time.monotonic() - arrival.held_since_s
        arrival.held_since_s = None
        connection.resume()

    def _end_arrival(self, connection: Connection) -> None:
        if connection in self._held:
            self._end_hold(connection)
        self._arriving.pop(connection, None)
        if connection is self._favoured:
            self._favoured = None

    def _refuse_slowest(self) -> None:
        """Refuse the request that arrives with the fewest bytes per second, if it is slow."""
        now_s = time.monotonic()
        ages_s = {each: arrival.age_s(now_s) for each, arrival in self._arriving.items()}
        old = [each for each, age_s in ages_s.items() if age_s > _MIN_AGE_S and each.buffered_bytes]
        slowest = min(old, key=lambda each: each.buffered_bytes / ages_s[each], default=None)
        if slowest is not None and slowest.buffered_bytes / ages_s[slowest] < _SLOW_BYTES_PER_S:
            slowest.close_with(ReceivingTooMuch())
            self.refused(slowest)
