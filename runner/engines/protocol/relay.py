"""The relay: sends tokens to where they are wanted, and batches them adaptively.

The engine's thread appends to the pending tokens of each stream. The relay's thread sends all pending tokens
of a stream as one response. An idle server sends each token by itself, a busy one sends batches; there is
nothing to configure. Streams are served in rounds. After each round the thread rests for a multiple of its
processor time, so that the tokens of a single stream wait for microseconds, and hundreds of streams get
fewer, longer responses: at every later step a response costs far more than a token. A stream that is read
as a whole gets two responses a second.

The engine server has one for all its clients, and the slot one for its responses through Triton.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from errors.coded_error import CodedError
from runner.engines.protocol.messages import COLLECTION_S, FinishReason

log = logging.getLogger("cog_triton.relay")

_LONGEST_REST_S = 0.1
_CLOSE_TIMEOUT_S = 5.0

End = FinishReason | CodedError
"""The end of a stream: its finish reason or error."""


@dataclass(slots=True, eq=False)
class Stream:
    """One output sequence of one caller.

    ``respond(tokens, end)`` sends new tokens and, if ``end`` is not None, the end. It is called only from the
    relay's thread, in order, and never after an end.
    """

    respond: Callable[[list[int], End | None], None]
    pending: list[int] = field(default_factory=list)
    end: End | None = None
    is_queued: bool = False
    is_new: bool = True
    """True until its first turn."""
    collects_until: frozenset[int] | None = None
    """See ``Submit``."""
    queued_s: float = 0.0
    """Time when it last had something to send."""

    def collects(self, new: list[int], now_s: float) -> bool:
        """Return True if the pending tokens, of which the last are ``new``, wait for later ones."""
        if self.collects_until is None or self.is_new or self.end is not None:
            return False
        return now_s < self.queued_s + COLLECTION_S and self.collects_until.isdisjoint(new)


class Relay:
    """Outlet that takes tokens of streams from any thread and sends them from its own."""

    def __init__(self, rest: float, after_round: Callable[[], None] = lambda: None) -> None:
        """Initialize. ``rest``: pause after a round, as a multiple of its processor time. ``after_round`` is
        called after each round of streams, and after new streams were served."""
        self._rest = rest
        self._after_round = after_round
        self._new: deque[Stream] = deque()
        self._ready: deque[Stream] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._is_resting = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def feed(self, new: Iterable[tuple[Stream, list[int], End | None]]) -> None:
        """Append tokens and ends to streams: preferably all of one engine step at once."""
        now_s = time.monotonic()
        with self._wake:
            for stream, tokens, end in new:
                if not tokens and end is None:
                    continue
                stream.pending += tokens
                if end is not None:
                    stream.end = end
                if not stream.is_queued and not stream.collects(tokens, now_s):
                    stream.is_queued = True
                    stream.queued_s = now_s
                    (self._new if stream.is_new else self._ready).append(stream)
            if self._new or (self._ready and not self._is_resting):
                self._wake.notify()

    def close(self) -> None:
        """Send all pending tokens but those that are collected, and end the thread, within some seconds."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while self._await_streams():
            rest_s = self._serve(len(self._ready))
            now_s = time.monotonic()
            end_s, longest_s = now_s + rest_s, now_s + _LONGEST_REST_S
            while self._await_new(min(end_s, longest_s)):
                end_s += self._serve(0)

    def _serve(self, count: int) -> float:
        """Make one round: ``count`` streams, with all new streams before each. Return the seconds to rest."""
        start_s = time.thread_time()
        self._serve_new()
        for _ in range(count):
            self._respond(*self._take(self._ready))
            self._serve_new()
        if count:
            self._after_round()
        return self._rest * (time.thread_time() - start_s)

    def _serve_new(self) -> None:
        if not self._new:
            return
        while self._new:
            self._respond(*self._take(self._new))
        self._after_round()

    def _await_streams(self) -> bool:
        """Wait for something to send. Return False if the relay is closed."""
        with self._wake:
            while not self._new and not self._ready and not self._closed:
                self._wake.wait()
            return bool(self._new or self._ready)

    def _await_new(self, end_s: float) -> bool:
        """Rest until ``end_s``, by ``monotonic``. Return True if a new stream arrived before."""
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
            # A response that can't be sent (to a disconnected client, for example) must not stop the others.
            log.exception("a response could not be sent")
