"""The protocol an engine kind implements to be run by the engine server, and the sink it reports to."""

from collections.abc import Iterable
from typing import Protocol

from runner.engines.protocol.messages import (
    FinishReason,
    LoadAdapter,
    Ready,
    Sleep,
    Statistics,
    Submit,
    TokenLogProb,
)


class Sink(Protocol):
    """The receiver of an engine's results. Every method may be called from any thread and returns at once."""

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        """Take new output tokens: (request id, tokens) pairs, at best all of one engine step together."""

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        """Take a value for each of the tokens that ``tokens`` gets next, of requests that want them."""

    def cached(self, new: Iterable[tuple[int, ...]]) -> None:
        """Take the numbers of prompt tokens that were not computed: see ``Cached``.

        They are sent to the client with its next tokens, or its end.
        """

    def finished(
        self,
        request_id: int,
        reason: FinishReason,
        sequences: list[list[int]] | None = None,
        embedding: bytes | None = None,
        drafted: tuple[int, int] | None = None,
    ) -> None:
        """End a request that holds nothing any more. Called exactly once, unless ``failed`` is.

        ``sequences``: outputs of a beam search, which has no ``tokens``. The others: see ``Finished``.
        """

    def failed(self, request_id: int, error: Exception) -> None:
        """Fail one request. A CodedError keeps its code; any other becomes E2109."""

    def broken(self, error: Exception) -> None:
        """Fail the engine: its process reports, ends, and is started again. E2107 if it has no code."""


class EngineAdapter(Protocol):
    """One loaded engine. Made by its adapter's ``load`` (see ``engine.kinds``), whose errors become E2108.

    ``submit`` and ``cancel`` are called from several threads and must return at once. ``cancel`` of a request
    that is unknown or already done has no effect. An engine reports ``finished(..., 'cancelled')`` for a
    request it cancelled, after its resources are free.
    """

    ready: Ready
    """Limits and abilities of the engine. The engine server replaces it when it carries out an order."""

    def submit(self, request: Submit) -> None: ...
    def cancel(self, request_id: int) -> None: ...
    def statistics(self) -> Statistics: ...

    def close(self) -> None:
        """Free the engine; requests still running are dropped."""


class OrderedAdapter(EngineAdapter, Protocol):
    """An engine of a kind that takes orders (``load_adapter`` and ``sleep`` of ``engine.kinds``).

    One thread calls these methods. They return once the order is carried out, and raise a CodedError.
    """

    def load_adapter(self, order: LoadAdapter) -> dict[str, str]:
        """Return the adapters for ``Ready``."""

    def unload_adapter(self, name: str) -> dict[str, str]:
        """Return the adapters for ``Ready``."""

    def sleep(self, order: Sleep) -> None:
        """Put the engine to sleep. ``ready.is_asleep`` is set before, so no request is submitted."""

    def wake_up(self, tags: list[str]) -> bool:
        """Return True if the engine can work again."""
