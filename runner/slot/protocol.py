"""What our runner and the slot say to each other over the slot's socket, in frames as the worker's."""

from __future__ import annotations

from typing import Any

import msgspec


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Start a request: the slot's tensors of one row by name; bytes are 32-bit integers.

    ``request_id`` is the asker's: never used twice on a connection.
    """

    request_id: int
    tensors: dict[str, Any]


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for the request any more."""

    request_id: int


Answers = list[tuple[int, dict[str, Any]]]
"""By request: outputs as in Triton's JSON, or ``error``. The last has ``finish_reason`` or ``error``."""
