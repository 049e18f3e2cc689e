"""Bytes of requests that the process holds, from the first one until Triton begins to answer."""

from collections.abc import Callable

from errors.triton_front import TooManyBytes


class Share:
    """Bytes that one request holds. ``evict`` is called if it has to go so that others can be received."""

    def __init__(self, budget: "Budget", evict: Callable[[TooManyBytes], None]) -> None:
        self._budget = budget
        self.evict = evict
        self.num_bytes = 0
        self.is_complete = evict is _never_evicted

    def hold(self, num_bytes: int) -> None:
        """Hold so much, instead of what it held. Raises TooManyBytes (E1112)."""
        self._budget.change(self, num_bytes)

    def release(self) -> None:
        self._budget.change(self, 0)

    def end(self) -> None:
        """Release it for the last time: its owner, to which it refers, is freed at once, and not by gc."""
        self.release()
        self.evict = _never_evicted


class Budget:
    """A budget of ``max_bytes`` in all. The incomplete request with the most bytes gives way."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0
        self._shares: set[Share] = set()

    def share(self, evict: Callable[[TooManyBytes], None] | None = None) -> Share:
        """Return a new share. ``evict``: None for one that is never incomplete, which never gives way."""
        return Share(self, evict or _never_evicted)

    def change(self, share: Share, num_bytes: int) -> None:
        self.held_bytes += num_bytes - share.num_bytes
        share.num_bytes = num_bytes
        if num_bytes:
            self._shares.add(share)
        else:
            self._shares.discard(share)
        while self.held_bytes > self._max_bytes:
            incomplete = [each for each in self._shares if not each.is_complete]
            victim = max(incomplete, key=lambda each: each.num_bytes, default=share)
            self.held_bytes -= victim.num_bytes
            victim.num_bytes = 0
            self._shares.discard(victim)
            error = TooManyBytes(max_bytes=self._max_bytes)
            if victim is share:
                raise error
            victim.evict(error)


def _never_evicted(error: TooManyBytes) -> None:
    """Do nothing: the share is complete, or holds nothing any more."""
