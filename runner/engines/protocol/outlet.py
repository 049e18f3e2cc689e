"""Sources of outputs, and outlets, by which their readers get items in a call."""

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
    """A callback for a source that is iterated: calling it costs less than waking the reader's task.

    The source uses it only while the reader waits for its next item. The first item, the last one and
    items that arrive while ``is_ready()`` is false are still yielded.
    """

    is_ready: Callable[[], bool]
    put: Callable[[T], bool]
    """Function that takes an item. False if the reader wants to end: the next yielded item wakes it."""
