"""Where a reader takes outputs in a call as they arrive: it costs less than to wake its task for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outlet(Generic[T]):
    """Given to a source that is iterated. Used only while the reader waits for its next item.

    The first item, the last one and all that come while ``is_ready`` is false are iterated as without it.
    """

    is_ready: Callable[[], bool]
    put: Callable[[T], bool]
    """Takes an item. False if the reader wants to end: the next item of the iteration wakes it."""
