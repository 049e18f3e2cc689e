"""The messages between the runner and the slot over the slot's socket, in frames of ``protocol.wire``."""

from __future__ import annotations

from typing import Any

import msgspec

from errors.wire import WireError
from runner.engines.protocol.events import Event


class StartRequest(msgspec.Struct, frozen=True, tag=True):
    """The slot's tensors of one row by name; bytes are 32-bit integers.

    The client chooses ``request_id`` and never uses it twice on a connection.
    """

    request_id: int
    tensors: dict[str, Any]


class CancelRequest(msgspec.Struct, frozen=True, tag=True):
    """The client does not wait for the request any more."""

    request_id: int


class Answer(Event):
    """New outputs of a request, or its error. The last of a request has ``finish_reason`` or ``error``."""

    error: WireError | None = None


Answers = list[tuple[int, Answer]]
"""The content of a frame: answers with the ids of their requests."""
