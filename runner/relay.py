"""The relay: carries tokens from the engine to Triton's response senders, coalescing by itself.

The engine's side appends to each stream's pending tokens; one sender thread sends, per stream, all
that is pending as one response. An idle server sends every token alone, a busy one batches: no
timer, no knob.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from errors.base import CodedError
from runner.engines.messages import FinishReason

log = logging.getLogger("cog_triton.slot")

End = FinishReason | CodedError
"""How a stream ended: a finish reason, or the error that ended it."""


class Stream:
    """One output sequence on its way to one client.

    ``respond(tokens, end)`` is the owner's: it sends new tokens and, when ``end`` is not None, the
    end. It is called from the relay's thread only, in order, never after an end.
    """

    __slots__ = ("end", "is_queued", "pending", "respond")

    def __init__(self, respond: Callable[[list[int], End | None], None]) -> None:
        self.respond = respond
        self.pending: list[int] = []
        self.end: End | None = None
        self.is_queued = False


class Relay:
    """Feeds streams from any thread; responds from its own."""

    def __init__(self) -> None:
        self._ready: deque[Stream] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def feed(self, new: Iterable[tuple[Stream, list[int], End | None]]) -> None:
        """Append tokens and ends to streams: at best everything one engine step made, together."""
        with self._wake:
            for stream, tokens, end in new:
                stream.pending += tokens
                if end is not None:
                    stream.end = end
                if not stream.is_queued:
                    stream.is_queued = True
                    self._ready.append(stream)
            self._wake.notify()

    def close(self) -> None:
        """Send what is pending and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._ready and not self._closed:
                    self._wake.wait()
                if not self._ready:
                    return
                stream = self._ready.popleft()
                stream.is_queued = False
                tokens, stream.pending, end = stream.pending, [], stream.end
            try:
                stream.respond(tokens, end)
            except Exception:
                # A response that can't be sent (its client is gone, say) must not stop the others.
                log.exception("a response could not be sent")
