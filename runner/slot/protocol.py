"""What our runner and the slot say to each other over the slot's socket, in frames as the worker's."""

from __future__ import annotations

from typing import Any

import msgspec

from errors.wire import WireError
from runner.engines.protocol.events import Event


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Start a request: the slot's tensors of one row by name; bytes are 32-bit integers.

    ``request_id`` is the asker's: never used twice on a connection.
    """

    request_id: int
    tensors: dict[str, Any]


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for the request any more."""

    request_id: int


class Answer(Event):
    """New outputs of a request, or its error. The last of a request has ``finish_reason`` or ``error``."""

    error: WireError | None = None


Answers = list[tuple[int, Answer]]
"""What a frame holds: answers with the ids of their requests."""
