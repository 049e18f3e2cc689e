"""Parameters of Triton requests by which the front and the slot work together.

Triton passes the parameters of a request on to the steps of an ensemble, but not its cancellation.
"""

from pathlib import Path

import msgspec

CALL = "cog_triton_call"
"""Call of the front that a request belongs to: the front's name, a colon, a number."""
STOPPED_CALL = "cog_triton_stop"
"""Calls whose requests are cancelled, separated by spaces."""
ONLY_FRONT = "cog_triton_only_front"
"""The front that lives: requests of all others are cancelled."""
SINGLE_RESPONSE = "cog_triton_single_response"
"""Flag to send all outputs in one response, as with ``decoupled_mode: false``."""
DIRECT = "cog_triton_direct"
"""Flag to send all responses but the last to the front itself: by Triton each costs ten times as much."""


def front_socket_path(engine_socket: Path) -> Path:
    """Return the socket on which the front takes ``DirectResponse`` messages."""
    return engine_socket.with_name("front")


class DirectTensor(msgspec.Struct, array_like=True):
    """A tensor in Triton's type names and binary form."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes


class DirectResponse(msgspec.Struct, array_like=True):
    """A response that is not the last of its request."""

    call: str
    """See ``CALL``."""
    request_id: str
    model_version: str
    tensors: list[DirectTensor]
