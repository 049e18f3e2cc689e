"""Chat templates are rendered in a process of their own: ``python -m runner.chat.sandbox SOCKET_FD``.

A template is a program that comes with the model. Jinja's sandbox keeps it from our objects, but does not
limit its time or memory. In this process the kernel does: RLIMIT_AS, and SIGPROF without a handler. It may
not write files either.

Both ways, a message is a 4-byte length and JSON. Requests: ``{"sources": {name: text}}`` once, then
``{"name", "variables"}`` any number of times. Each is answered with ``{"text"}``, or with the reason as
``{"broken"}`` (the template does not compile) or ``{"refused"}`` (it does not render these messages).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from engine.machine.child_environment import without_secret_variables
from engine.machine.root import SOURCE_ROOT
from errors.chat import ChatTemplateBroken, ChatTemplateRefused

RENDER_S = 5.0
"""Limit of processor time, so that a busy machine does not matter. A long chat takes milliseconds."""
_MEMORY_BYTES = 512 << 20
"""Limit of address space beyond what the process has at its start."""
_MAX_TEXT_CHARACTERS = 1 << 24
_ANSWER_TIMEOUT_S = 20 * RENDER_S
"""Longer than the process can live at its limit of processor time, also on a busy machine."""
_LIMIT_EXCEEDED = f"it took more than {RENDER_S:g} s or more than {_MEMORY_BYTES >> 20} MiB"
_LENGTH = struct.Struct("<I")


class ChatRenderer:
    """Renders the templates ``sources``, by name, one at a time; from any thread. ``place`` is for errors.

    The process starts at the first use, and again after it was ended for exceeding a limit. It ends when its
    socket closes: with this object, or with our process.
    """

    def __init__(self, sources: Mapping[str, str], place: str) -> None:
        self._sources = sources
        self._place = place
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket

    def check(self) -> None:
        """Compile now. Raises E1701."""
        with self._lock:
            self._start()

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Raises E1701, and E1702 with the template's own message."""
        with self._lock:
            self._start()
            try:
                answer = self._call({"name": name, "variables": variables})
            except RecursionError as exc:
                self._end()
                raise ChatTemplateRefused(reason="they are nested too deeply") from exc
        if answer is None:
            raise ChatTemplateRefused(reason=_LIMIT_EXCEEDED)
        if "refused" in answer:
            raise ChatTemplateRefused(reason=answer["refused"])
        return str(answer["text"])

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            environment = without_secret_variables(os.environ)
            environment |= {"PYTHONPATH": str(SOURCE_ROOT), "PYTHONSAFEPATH": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runner.chat.sandbox", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        ours.settimeout(_ANSWER_TIMEOUT_S)
        self._connection = ours
        answer = self._call({"sources": self._sources})
        if answer is None or "broken" in answer:
            self._end()
            reason = answer["broken"] if answer else _LIMIT_EXCEEDED
            raise ChatTemplateBroken(place=self._place, reason=reason)

    def _call(self, message: object) -> dict[str, Any] | None:
        """None if the process ended over it, or had to be ended."""
        try:
            _send(self._connection, message)
            answer: dict[str, Any] | None = _receive(self._connection)
        except OSError:
            answer = None
        if answer is None:
            self._end()
        return answer

    def _end(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def __del__(self) -> None:
        # NOTE: waits only for the kernel: SIGKILL.
        self._end()


def _send(connection: socket.socket, message: object) -> None:
    """Raises OSError, and RecursionError for what is nested too deeply."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Any | None:
    """None if the peer has closed the connection. Raises OSError."""
    head = _receive_exactly(connection, _LENGTH.size)
    body = _receive_exactly(connection, _LENGTH.unpack(head)[0]) if head else b""
    return json.loads(body) if body else None


def _receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Empty if the peer has closed the connection."""
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

    _set_limits()
    templates: dict[str, Any] = {}
    while (message := _receive(connection)) is not None:
        signal.setitimer(signal.ITIMER_PROF, RENDER_S)
        is_compiling = "sources" in message
        try:
            if is_compiling:
                templates = {name: compile_template(text) for name, text in message["sources"].items()}
                answer = {"text": ""}
            else:
                text = templates[message["name"]].render(message["variables"])
                if len(text) > _MAX_TEXT_CHARACTERS:
                    raise ValueError(f"it makes more than {_MAX_TEXT_CHARACTERS} characters of them")
                answer = {"text": text}
        # NOTE: a template is a program: it fails with its own messages, and with Python's errors as well.
        except Exception as exc:  # noqa: BLE001
            answer = {"broken" if is_compiling else "refused": reason_of(exc)}
        _send(connection, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _set_limits() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm") as file:  # noqa: PTH123
        has_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has_bytes + _MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


if __name__ == "__main__":
    main()
