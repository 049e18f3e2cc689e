"""Outputs that a client has received of one request, until its reader takes them."""

import asyncio
from dataclasses import dataclass, field

from errors.coded_error import CodedError
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.messages import Finished, Output
from runner.engines.protocol.outlet import Outlet

_LATE = 1.5
"""Number of steps after which held tokens are released without the next ones."""


@dataclass(slots=True, eq=False)
class ReceivedStream:
    """Outputs of one request that have arrived and its reader has not taken yet."""

    received_s: float
    unread_s: float = 0.0
    """Time when the first of ``output`` arrived, if there is any."""
    output: Output = field(default_factory=Output)
    has_output: bool = False
    error: CodedError | None = None
    is_ended: bool = False
    waiter: asyncio.Future[None] | None = None
    coalescing: Coalescing | None = None
    outlet: Outlet[Output] | None = None
    taken_s: float = 0.0
    """Time when the reader took the last output; 0 before the first."""
    num_arrivals: int = 0
    """Number of arrivals since then."""
    held_until_s: float = 0.0
    """Time when the reader gets the output, unless more comes; 0: at once."""

    def receive(self, tokens: list[int], now_s: float) -> bool:
        """Take tokens. Return True if they are held: call ``release`` later. Else call ``deliver``."""
        step_s, self.received_s = now_s - self.received_s, now_s
        if self.is_ended:
            return False  # We have cancelled it.
        self.num_arrivals += 1
        if self.has_output:
            self.output.tokens += tokens
            if not self.held_until_s:
                return False
        else:
            self.output.tokens = tokens
            self.has_output = True
            self.unread_s = now_s
        is_held = self._holds(now_s - self.taken_s, step_s)
        self.held_until_s = now_s + _LATE * step_s if is_held else 0.0
        return is_held

    def _holds(self, waited_s: float, step_s: float) -> bool:
        if self.coalescing is None or not self.taken_s:
            return False
        return self.coalescing.holds(waited_s, step_s, self.num_arrivals)

    def release(self, now_s: float) -> None:
        """Give the reader the output that was held for long enough."""
        if self.held_until_s <= now_s:
            self.held_until_s = 0.0
            self.deliver(now_s)

    def deliver(self, now_s: float) -> None:
        """Give the reader the output that is not held."""
        if self.held_until_s or not self.has_output:
            return
        outlet, waiter = self.outlet, self.waiter
        if outlet is None or self.is_ended or not self.taken_s or not outlet.is_ready():
            self._wake()
        elif waiter is not None and not waiter.done():
            try:
                wants_more = outlet.put(self._take(now_s))
            except Exception as exc:  # noqa: BLE001 - the reader raises it
                waiter.set_exception(exc)
                return
            if not wants_more:
                self.has_output = True
                self._wake()

    def finish(self, message: Finished, now_s: float) -> None:
        if self.is_ended:
            return
        self.output.finish_reason = message.reason
        self.output.times_s = message.times_s
        self.output.embedding = message.embedding
        self.output.drafted = message.drafted
        self.is_ended = True
        if not self.has_output:
            self.has_output = True
            self.unread_s = now_s
        self._wake()

    def fail(self, error: CodedError) -> None:
        if not self.is_ended:
            self.error = error
            self.is_ended = True
            self._wake()

    def _wake(self) -> None:
        self.held_until_s = 0.0
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> Output:
        """Wait, and return all that has arrived. Raises the stream's error after the last output."""
        loop = asyncio.get_running_loop()
        while not self.has_output or self.held_until_s:
            if self.error is not None and not self.has_output:
                raise self.error
            self.waiter = loop.create_future()
            await self.waiter
        return self._take(loop.time())

    def _take(self, now_s: float) -> Output:
        output, self.output = self.output, Output()
        self.has_output = False
        self.num_arrivals = 0
        self.taken_s = now_s
        if self.coalescing is not None:
            self.coalescing.taken()
        return output
