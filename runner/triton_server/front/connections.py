"""The connections of the gRPC port, and those that give way when there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from runner.supervision.turns import Turns


class ClientConnection(Protocol):
    @property
    def unread_bytes(self) -> int:
        """Of answers that the client has not read."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is in progress."""
        ...

    def abort(self) -> None: ...


T = TypeVar("T", bound=ClientConnection)


class Connections(Generic[T]):
    """A further one takes the place of the idle one that was opened first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._opened: dict[T, None] = {}
        self.turns = Turns()

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._opened))

    def add(self, connection: T) -> None:
        if len(self._opened) >= self._most:
            victim = next((each for each in self._opened if each.is_idle), connection)
            victim.abort()
            if victim is connection:
                return
            self.remove(victim)  # It is lost only later, and others may be added before.
        self._opened[connection] = None

    def remove(self, connection: T) -> None:
        self._opened.pop(connection, None)
