"""The connection between the head of an engine on several machines and one of the others.

A message is a line of JSON. An empty line is a heartbeat. NOTE: neither this nor vLLM's own traffic between
machines is authenticated or encrypted.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import msgspec

from errors.wire import WireError

_SILENCE_S = 10.0
"""Time without a line after which the other end is lost."""
_BEAT_S = 1.0
_MAX_LINE_BYTES = 1 << 20


class Join(msgspec.Struct, tag=True):
    """A follower joins. ``facts``: what must be the same on all nodes, as text."""

    rank: int
    facts: dict[str, str]


class Begin(msgspec.Struct, tag=True):
    """All nodes have joined: vLLM's ranks meet at this port of the head."""

    port: int


class End(msgspec.Struct, tag=True):
    """The sender ends the connection. ``is_final``: False if the receiver may try again."""

    error: WireError
    is_final: bool = True


_DECODER: msgspec.json.Decoder[Join | Begin | End] = msgspec.json.Decoder(Join | Begin | End)


class Link:
    """The connection between a follower and the head. Its methods raise OSError once it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SILENCE_S)
        self.own_address = str(connection.getsockname()[0])
        self.peer_address = str(connection.getpeername()[0])
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._sending = threading.Lock()
        threading.Thread(target=self._beat, name="node-heartbeat", daemon=True).start()

    def send(self, message: Join | Begin | End) -> None:
        self._send_line(msgspec.json.encode(message))

    def receive(self) -> Join | Begin | End:
        while True:
            try:
                line = self._lines.readline(_MAX_LINE_BYTES)
            except TimeoutError:
                raise ConnectionError(f"nothing came for {_SILENCE_S:g} s") from None
            if not line.endswith(b"\n"):
                raise ConnectionError("the connection was closed")
            if line != b"\n":
                try:
                    return _DECODER.decode(line)
                except msgspec.MsgspecError as exc:
                    raise ConnectionError("a malformed message came") from exc

    def why_ended(self) -> str:
        """Wait for the end of the connection, and return its reason."""
        try:
            message = self.receive()
        except OSError as exc:
            return exc.strerror or str(exc)
        return message.error.sentence if isinstance(message, End) else "an unexpected message came"

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send_line(self, line: bytes) -> None:
        with self._sending:
            self._connection.sendall(line + b"\n")

    def _beat(self) -> None:
        with suppress(OSError):
            while True:
                self._send_line(b"")
                time.sleep(_BEAT_S)
