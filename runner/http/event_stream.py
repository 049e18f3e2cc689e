"""Parser of server-sent events, whose bytes may arrive in any pieces."""

from typing import NamedTuple


class ServerEvent(NamedTuple):
    name: str
    """The event's name; empty if it has none."""
    data: bytes


class EventParser:
    def __init__(self) -> None:
        self.rest = b""
        """Beginning of an event that has not arrived completely."""

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Take a piece. Return the events that it completes, without keep-alive comments."""
        *blocks, self.rest = (self.rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        return [_event(block) for block in blocks if block.startswith(b"data:") or b"\ndata:" in block]


def _event(block: bytes) -> ServerEvent:
    name, data = "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"data":
            data.append(value)
    return ServerEvent(name, b"\n".join(data))
