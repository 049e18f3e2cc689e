"""Server-sent events out of an answer: each with its name, its data and the time it was whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perf.load.response import Response


class Event(NamedTuple):
    """``data`` is what stood after ``data:``, lines joined; ``name`` is "" where none was given."""

    at_s: float
    name: str
    data: bytes


def events(response: Response) -> Iterator[Event]:
    """The events of a body, also of one that was cut off: what is not whole is left out, as are comments."""
    rest = b""
    for at_s, piece in response.pieces:
        text = rest + piece if rest else piece
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *whole, rest = text.split(b"\n\n")
        for block in whole:
            if block.startswith(b"data:") or b"\ndata:" in block:
                yield _event(at_s, block)


def _event(at_s: float, block: bytes) -> Event:
    if block.startswith(b"data: ") and b"\n" not in block:  # What nearly all of them are.
        return Event(at_s, "", block[6:])
    name = ""
    data = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"data":
            data.append(value)
    return Event(at_s, name, b"\n".join(data))
