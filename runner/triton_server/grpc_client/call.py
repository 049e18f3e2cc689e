"""One call of Triton's gRPC API."""

import logging
from collections.abc import Callable
from typing import Protocol

from errors.api import InternalError
from runner.triton_server.grpc_wire import INTERNAL, Messages, TooLong, prefixed

OnMessage = Callable[[bytes], None]
OnEnd = Callable[[int, str], None]
"""Function that takes the status and its message."""

WINDOW_BYTES = (1 << 31) - 1
"""Window of each stream and of the connection. What clients do not read is bounded elsewhere."""
_MAX_MESSAGE_BYTES = 1 << 30

log = logging.getLogger("cog_triton.triton_front")


class CallsConnection(Protocol):
    """The part of ``TritonConnection`` that a call needs."""

    initial_window_bytes: int

    def send_from(self, call: "TritonCall") -> None: ...
    def open_window(self, stream_id: int, credit_bytes: int) -> int: ...
    def reset(self, call: "TritonCall") -> None: ...


class TritonCall:
    """One call, until ``on_end`` was called or ``reset`` returned. Callbacks are cheaper than tasks."""

    def __init__(
        self, connection: CallsConnection, stream_id: int, on_message: OnMessage, on_end: OnEnd
    ) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self._messages = Messages(_MAX_MESSAGE_BYTES)
        self._on_message = on_message
        self._on_end = on_end
        self.window_bytes = connection.initial_window_bytes
        """Bytes that Triton takes now."""
        self.credit_bytes = WINDOW_BYTES
        """How much Triton may still send."""
        self.unsent = bytearray()
        self.is_last = False
        """True if nothing follows ``unsent``."""
        self.is_closed = False
        """True once the last message has been sent."""
        self._is_ignored = False

    def send(self, message: bytes, *, is_last: bool = False) -> None:
        self.unsent += prefixed(message)
        self.is_last = is_last
        self._connection.send_from(self)

    def half_close(self) -> None:
        if not self.is_closed:
            self.is_last = True
            self._connection.send_from(self)

    def stop_reading(self) -> None:
        """Take no more messages. Triton ends the call by itself, once it has done what it was sent.

        NOTE: Triton 2.51 crashes, stands still or leaks at some of the calls that are reset while they run.
        """
        self._is_ignored = True
        self.half_close()

    def reset(self) -> None:
        """Reset the call: Triton cancels what it runs for it, and forgets it."""
        self._connection.reset(self)

    def receive(self, data: bytes) -> None:
        self.credit_bytes -= len(data)
        if self.credit_bytes < WINDOW_BYTES // 2:
            self.credit_bytes = self._connection.open_window(self.stream_id, self.credit_bytes)
        if self._is_ignored:
            return
        try:
            for message in self._messages.feed(data):
                self._on_message(message)
        except TooLong:
            self.reset()
            self.end(INTERNAL, "its answer is not gRPC's")
        except Exception:  # Other calls go on.
            log.exception("an answer of Triton could not be passed on")
            self.reset()
            self.end(INTERNAL, str(InternalError()))

    def end(self, status: int, message: str) -> None:
        try:
            self._on_end(status, message)
        except Exception:
            log.exception("the end of an answer of Triton could not be passed on")
