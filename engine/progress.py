"""Progress reports of long-running work."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, done_bytes: int, total_bytes: int | None, what: str, /) -> None:
        """Report a step of about a megabyte, from the thread that called the function.

        ``total_bytes`` is None if it is unknown; ``what`` is a present participle ("packing").
        """
