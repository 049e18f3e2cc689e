"""What a source of outputs is, and where its reader takes them in a call as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from runner.engines.protocol.messages import Output

T = TypeVar("T")


class Outputs(Protocol):
    """Outputs of one request, such as an async generator: iterate once and close, which cancels the rest."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    def __anext__(self) -> Awaitable[Output]: ...

    def aclose(self) -> Awaitable[None]: ...


@dataclass(frozen=True)
class Outlet(Generic[T]):
    """Given to a source that is iterated: to take an item there costs less than to wake the reader's task.

    Used only while the reader waits for its next item. The first item, the last one and all that
    come while ``is_ready`` is false are iterated as without it.
    """

    is_ready: Callable[[], bool]
    put: Callable[[T], bool]
    """Takes an item. False if the reader wants to end: the next item of the iteration wakes it."""
