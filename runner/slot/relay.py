"""The relay: carries tokens from the engine to Triton's response senders, coalescing by itself.

The engine's side appends to each stream's pending tokens; one sender thread sends, per stream, all
that is pending as one response. An idle server sends every token alone, a busy one batches: no
knob. Streams are served in rounds, and after each the thread rests for a multiple of the time it took.
So one stream's tokens wait for microseconds, while hundreds of streams get fewer, longer responses
and leave most of the machine to those who carry them on: at every hop a response costs far more than a token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from errors.coded_error import CodedError
from runner.engines.protocol.messages import FinishReason

log = logging.getLogger("cog_triton.slot")

_REST = 2
"""Rest of the thread, as a multiple of the round before it."""
_LONGEST_REST_S = 0.1

End = FinishReason | CodedError
"""How a stream ended: a finish reason, or the error that ended it."""


class Stream:
    """One output sequence on its way to one client.

    ``respond(tokens, end)`` is the owner's: it sends new tokens and, when ``end`` is not None, the
    end. It is called from the relay's thread only, in order, never after an end.
    """

    __slots__ = ("end", "is_new", "is_queued", "pending", "respond")

    def __init__(self, respond: Callable[[list[int], End | None], None]) -> None:
        self.respond = respond
        self.pending: list[int] = []
        self.end: End | None = None
        self.is_queued = False
        self.is_new = True
        """Until its first turn."""


class Relay:
    """Feeds streams from any thread; responds from its own."""

    def __init__(self, after_round: Callable[[], None] = lambda: None) -> None:
        """``after_round`` is called when each stream of a round had its turn, and after the new ones."""
        self._after_round = after_round
        self._new: deque[Stream] = deque()
        self._ready: deque[Stream] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._is_resting = False
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
                    (self._new if stream.is_new else self._ready).append(stream)
            if self._new or not self._is_resting:
                self._wake.notify()

    def close(self) -> None:
        """Send what is pending and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._await_streams():
            rest_s = self._serve(len(self._ready))
            now_s = time.monotonic()
            end_s, longest_s = now_s + rest_s, now_s + _LONGEST_REST_S
            while self._await_new(min(end_s, longest_s)):
                end_s += self._serve(0)

    def _serve(self, count: int) -> float:
        """A round: ``count`` streams, and all that are new before each. Returns for how long to rest."""
        start_s = time.thread_time()
        self._serve_new()
        for _ in range(count):
            self._respond(*self._take(self._ready))
            self._serve_new()
        if count:
            self._after_round()
        return _REST * (time.thread_time() - start_s)

    def _serve_new(self) -> None:
        if not self._new:
            return
        while self._new:
            self._respond(*self._take(self._new))
        self._after_round()

    def _await_streams(self) -> bool:
        """Wait for something to send; False if nothing will come."""
        with self._wake:
            while not self._new and not self._ready and not self._closed:
                self._wake.wait()
            return bool(self._new or self._ready)

    def _await_new(self, end_s: float) -> bool:
        """Rest until then, by ``monotonic``; True if a new stream came before."""
        with self._wake:
            self._is_resting = True
            while not self._new and (left_s := end_s - time.monotonic()) > 0:
                self._wake.wait(left_s)
            self._is_resting = False
            return bool(self._new) and time.monotonic() < end_s

    def _take(self, queue: deque[Stream]) -> tuple[Stream, list[int], End | None]:
        with self._wake:
            stream = queue.popleft()
            stream.is_queued = stream.is_new = False
            tokens, stream.pending = stream.pending, []
            return stream, tokens, stream.end

    def _respond(self, stream: Stream, tokens: list[int], end: End | None) -> None:
        try:
            stream.respond(tokens, end)
        except Exception:
            # A response that can't be sent (its client is gone, say) must not stop the others.
            log.exception("a response could not be sent")
