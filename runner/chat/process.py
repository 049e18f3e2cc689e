"""The process that renders chat templates: ``python -m runner.chat.process SOCKET_FD``.

A template is a program of whoever made the model. Jinja's sandbox keeps it from our objects, but bounds
neither its time nor its memory; here the kernel does: RLIMIT_AS, and SIGPROF that nobody handles. It may not
write files either.

Each way a message is a 4-byte length and JSON. In: ``{"sources": {name: text}}`` once, then
``{"name", "variables"}`` again and again. Out, for each: ``{"text"}``, or a reason as ``{"broken"}`` or
``{"refused"}``.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import struct
import sys
from typing import Any

RENDER_S = 5.0
"""Of processor time, so that a busy machine harms nobody. A long chat takes milliseconds."""
MEMORY_BYTES = 512 << 20
"""Beside what the process has at its start."""
_MOST_TEXT_CHARACTERS = 1 << 24
_LENGTH = struct.Struct("<I")


def send(connection: socket.socket, message: object) -> None:
    """Raises OSError, and RecursionError for what is nested too deeply."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any | None:
    """None if the other side is gone. Raises OSError."""
    head = _receive_exactly(connection, _LENGTH.size)
    body = _receive_exactly(connection, _LENGTH.unpack(head)[0]) if head else b""
    return json.loads(body) if body else None


def _receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Fewer, and then none, only where the other side is gone."""
    parts = bytearray()
    while len(parts) < size_bytes:
        data = connection.recv(min(size_bytes - len(parts), 1 << 20))
        if not data:
            return b""
        parts += data
    return bytes(parts)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    from runner.chat.jinja import compile_template, reason_of

    _limit()
    templates: dict[str, Any] = {}
    while (message := receive(connection)) is not None:
        signal.setitimer(signal.ITIMER_PROF, RENDER_S)
        is_compiling = "sources" in message
        try:
            if is_compiling:
                templates = {name: compile_template(text) for name, text in message["sources"].items()}
                answer = {"text": ""}
            else:
                text = templates[message["name"]].render(message["variables"])
                if len(text) > _MOST_TEXT_CHARACTERS:
                    raise ValueError(f"it makes more than {_MOST_TEXT_CHARACTERS} characters of them")
                answer = {"text": text}
        # NOTE: a template is a program: it fails with its own messages, and with Python's errors as well.
        except Exception as exc:  # noqa: BLE001
            answer = {"broken" if is_compiling else "refused": reason_of(exc)}
        send(connection, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm") as file:  # noqa: PTH123
        has_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has_bytes + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


if __name__ == "__main__":
    main()
