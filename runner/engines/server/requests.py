"""The requests of all clients: from their messages to the engine, and from the engine through the relay."""

import itertools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from engine.machine.processors import usable_processors
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed, as_coded
from errors.wire import ExitReason, WireError
from runner.engines.protocol.adapter import EngineAdapter
from runner.engines.protocol.checks import check_request
from runner.engines.protocol.messages import (
    MIN_LOG_PROB,
    Failed,
    Finished,
    FinishReason,
    Statistics,
    Submit,
    TokenLogProb,
)
from runner.engines.protocol.relay import End, Relay, Stream
from runner.engines.server.metrics import EngineMetrics

_BROKEN_EXIT_CODE = 70
_RESPONSE_COST = 30
"""Cost of a response for a client, as a multiple of its cost here (docs/measurements/)."""
_LEAST_REST = 2
_COMPLETED = ("end", "stop", "length")

log = logging.getLogger("cog_triton.engine")


class Client(Protocol):
    """A connection that requests came from. Called from the relay's thread."""

    def respond(
        self,
        request: "Request",
        tokens: list[int],
        log_probs: list[TokenLogProb],
        end: Finished | Failed | None,
    ) -> None:
        """Send tokens and an end with the next ``flush``."""

    def cached(self, request: "Request", counts: Sequence[int]) -> None:
        """Send ``Cached`` with the next ``flush``. Called from the engine's thread."""

    def flush(self) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """One request of a client, from its ``Submit`` to its end."""

    number: int
    """Id for the engine; ``submit.request_id`` is the client's."""
    submit: Submit
    client: Client
    stream: Stream
    arrival_s: float = field(default_factory=time.perf_counter)
    last_token_s: float = 0.0
    """Time when the engine reported the end."""
    is_cancelled: bool = False
    log_probs: list[TokenLogProb] = field(default_factory=list)
    """Log probabilities of tokens that the relay has not sent yet."""
    num_log_probs: int = 0
    """Log probabilities that came for the next tokens."""
    sequences: list[list[int]] | None = None
    """Results of a beam search, set before its end."""
    embedding: bytes | None = None
    drafted: tuple[int, int] | None = None


class Requests:
    """All running requests; the engine's sink (see ``runner.engines.protocol.adapter.Sink``)."""

    def __init__(self, engine_kind: str, metrics: EngineMetrics, exit_reason: ExitReason) -> None:
        self._engine_kind = engine_kind
        self._metrics = metrics
        self._exit_reason = exit_reason
        self._engine: EngineAdapter
        self._numbers = itertools.count(1)
        self._running: dict[int, Request] = {}
        self._is_broken = False
        self._answered: set[Client] = set()
        """Clients with output in the relay's current round."""
        self._completed: list[Request] = []
        """Requests that end in the relay's round."""
        self._relay = Relay(relay_rest(usable_processors()), self._flush)
        self._progress_s = time.monotonic()

    def serve(self, engine: EngineAdapter) -> None:
        """Pass requests to ``engine`` from now on."""
        self._engine = engine

    def close(self) -> None:
        """Send all that the engine has reported."""
        self._relay.close()

    # From the clients to the engine

    def open(self, submit: Submit, client: Client) -> Request:
        """Take a new request, whose results and errors go to ``client``."""
        stream = Stream(lambda tokens, end: self._respond(request, tokens, end))
        if submit.collects_until is not None:
            stream.collects_until = frozenset(submit.collects_until)
        request = Request(next(self._numbers), submit, client, stream)
        return request

    def submit(self, request: Request) -> None:
        submit = request.submit
        self._metrics.submitted(submit.sent_s, request.arrival_s)
        if not self._running:
            self._progress_s = time.monotonic()
        self._running[request.number] = request
        try:
            check_request(submit, self._engine.ready)
            if submit.images:  # Large, so not kept here until the end.
                request.submit = msgspec.structs.replace(submit, images=[])
            self._engine.submit(msgspec.structs.replace(submit, request_id=request.number))
        except CodedError as exc:
            self._end(request.number, exc)
        except Exception as exc:  # noqa: BLE001 - of an adapter or its library: other requests go on
            self.failed(request.number, exc)

    def cancel(self, request: Request) -> None:
        """Have the engine free what the request holds; it then ends as cancelled."""
        if not request.is_cancelled and request.number in self._running:
            request.is_cancelled = True
            self._metrics.cancelled()
            self._engine.cancel(request.number)

    # From the engine to the relay

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        feeds: list[tuple[Stream, list[int], End | None]] = []
        num_tokens = 0
        find = self._running.get
        for number, tokens in new:
            if (request := find(number)) is None:
                continue
            if request.submit.wants_log_probs and not self._has_log_probs(request, tokens):
                continue
            num_tokens += len(tokens)
            feeds.append((request.stream, tokens, None))
        self._metrics.received(num_tokens)
        self._progress_s = time.monotonic()
        self._relay.feed(feeds)

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        for number, values in new:
            if (request := self._running.get(number)) is not None:
                request.log_probs += map(_finite, values)
                request.num_log_probs += len(values)

    def cached(self, new: Iterable[tuple[int, ...]]) -> None:
        for number, *counts in new:
            if (request := self._running.get(number)) is not None:
                request.client.cached(request, counts)

    def finished(
        self,
        request_id: int,
        reason: FinishReason,
        sequences: list[list[int]] | None = None,
        embedding: bytes | None = None,
        drafted: tuple[int, int] | None = None,
    ) -> None:
        request = self._running.get(request_id)
        if sequences is not None and request is not None:
            self._metrics.received(sum(map(len, sequences)))
            request.sequences = sequences
        if embedding is not None and request is not None:
            request.embedding = embedding
        if drafted is not None and request is not None:
            self._metrics.drafted(*drafted)
            request.drafted = drafted
        self._end(request_id, reason)

    def failed(self, request_id: int, error: Exception) -> None:
        coded = as_coded(error, EngineFailed, self._engine_kind)
        self._log_failed([request_id], f"the engine failed a request: {coded.code}", coded is not error)
        self._end(request_id, coded)

    def broken(self, error: Exception) -> None:
        """End all requests with the error, and this process: its parent starts another."""
        self._is_broken = True
        coded = as_coded(error, EngineCrashed, self._engine_kind)
        self._exit_reason.write(coded)
        # NOTE: the first error stays: the engine's process or another thread may have left the cause.
        coded = self._exit_reason.read() or coded
        log.critical("%s", coded, exc_info=None if isinstance(error, CodedError) else error)
        numbers = list(self._running)
        self._log_failed(numbers, f"requests ended with {coded.code}")
        for number in numbers:
            self._end(number, coded)
        self.close()
        # NOTE: not sys.exit: the engine's own threads may hang in native code for ever.
        os._exit(_BROKEN_EXIT_CODE)

    def check_progress(self, timeout_s: float) -> None:
        """End an engine whose requests have had no token for this time; 0: never. It has none asleep."""
        if self._running and 0 < timeout_s < time.monotonic() - self._progress_s:
            reason = f"it hangs: requests waited and heard nothing for {timeout_s:g} s"
            self.broken(EngineCrashed(engine_kind=self._engine_kind, reason=reason))

    def statistics(self) -> Statistics:
        """Return the engine's statistics, with the figures of this server."""
        statistics = self._engine.statistics()
        counts = self._metrics.counts(running=len(self._running), statistics=statistics)
        return msgspec.structs.replace(statistics, counts=counts)

    def _has_log_probs(self, request: Request, tokens: list[int]) -> bool:
        """Return True if each token has a value; if not, the request fails."""
        count, request.num_log_probs = request.num_log_probs, 0
        if count != len(tokens):
            reason = f"it sent {count} log probabilities for {len(tokens)} tokens"
            self.failed(request.number, EngineFailed(engine_kind=self._engine_kind, reason=reason))
        return count == len(tokens)

    def _end(self, number: int, end: End) -> None:
        self._progress_s = time.monotonic()
        request = self._running.pop(number, None)
        if request is not None:
            request.last_token_s = time.perf_counter()
            self._metrics.ended(end)
            self._relay.feed([(request.stream, [], end)])

    def _log_failed(self, numbers: list[int], message: str, has_trace: bool = False) -> None:
        """Log the ids of the callers' requests, if they have any."""
        running = [self._running.get(each) for each in numbers]
        named = [each.submit.caller_id for each in running if each is not None and each.submit.caller_id]
        if named or has_trace:
            fields = {"request_ids": named, "engine_request_ids": numbers}
            log.error("%s", message, extra={"fields": fields})

    # From the relay to the clients

    def _respond(self, request: Request, tokens: list[int], end: End | None) -> None:
        log_probs: list[TokenLogProb] = []
        if request.log_probs:
            log_probs = request.log_probs[: len(tokens)]
            del request.log_probs[: len(tokens)]
        message: Finished | Failed | None = None
        client_id = request.submit.request_id
        if isinstance(end, CodedError):
            message = Failed(client_id, WireError.of(end))
        elif end is not None:
            times_s = (request.arrival_s, request.last_token_s) if request.submit.returns_times else None
            results = request.sequences, request.embedding
            message = Finished(client_id, end, *results, times_s, request.drafted)
        request.client.respond(request, tokens, log_probs, message)
        self._answered.add(request.client)
        if isinstance(end, CodedError) and not self._is_broken:
            self._engine.cancel(request.number)  # It still runs if its output was rejected here.
        if end in _COMPLETED:
            self._completed.append(request)

    def _flush(self) -> None:
        answered, self._answered = self._answered, set()
        for client in answered:
            client.flush()
        completed, self._completed = self._completed, []
        for request in completed:
            self._metrics.completed(request.arrival_s, request.last_token_s)


def relay_rest(num_processors: int) -> float:
    """Return the relay's rest as a multiple of its work, so that clients need only the other processors."""
    return max(_RESPONSE_COST / max(num_processors - 1, 1), _LEAST_REST)


def _finite(log_prob: TokenLogProb) -> TokenLogProb:
    """Raise values below ``MIN_LOG_PROB`` to it."""
    if log_prob.value >= MIN_LOG_PROB and all(value >= MIN_LOG_PROB for _, value in log_prob.top):
        return log_prob
    top = [(token, max(value, MIN_LOG_PROB)) for token, value in log_prob.top]
    return TokenLogProb(max(log_prob.value, MIN_LOG_PROB), top)
