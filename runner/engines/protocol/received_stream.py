"""What a client has received of one request, until its reader takes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Finished, Output


@dataclass(slots=True, eq=False)
class ReceivedStream:
    """What has arrived of one request and its reader has not taken yet."""

    received_s: float
    unread_s: float = 0.0
    """When the first of ``output`` arrived, if there is any."""
    output: Output = field(default_factory=Output)
    has_output: bool = False
    error: CodedError | None = None
    is_ended: bool = False
    waiter: asyncio.Future[None] | None = None

    def receive(self, tokens: list[int], now_s: float) -> None:
        self.received_s = now_s
        if self.is_ended:
            return  # We have cancelled it.
        if self.has_output:
            self.output.tokens += tokens
        else:
            self.output.tokens = tokens
            self._has_first(now_s)

    def finish(self, message: Finished, now_s: float) -> None:
        if self.is_ended:
            return
        self.output.finish_reason = message.reason
        self.output.times_s = message.times_s
        self.output.embedding = message.embedding
        self.is_ended = True
        if not self.has_output:
            self._has_first(now_s)

    def fail(self, error: CodedError) -> None:
        if not self.is_ended:
            self.error = error
            self.is_ended = True
            self._wake()

    def _has_first(self, now_s: float) -> None:
        self.has_output = True
        self.unread_s = now_s
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> Output:
        """All that has arrived, at least something. Raises the stream's error after the last output."""
        while not self.has_output:
            if self.error is not None:
                raise self.error
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        output, self.output = self.output, Output()
        self.has_output = False
        return output
