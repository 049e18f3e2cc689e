"""Chat templates are rendered in processes: ``python -m runner.chat.sandbox SOCKET_FD NICENESS``.

A template is a program that comes with the model, and its input is a client's. Jinja's sandbox keeps it from
our objects, but does not limit its time or memory. In this process the kernel does: RLIMIT_AS, and SIGPROF
without a handler. It may not write files either.

Both ways, a message is a 4-byte length and JSON: ``Compile`` once, then ``Render`` any number of times, each
answered by ``Answer``.
"""

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec

from engine.machine.root import own_environment
from errors.chat import ChatTemplateBroken, ChatTemplateRefused
from errors.coded_error import CodedError
from errors.wire import WireError
from runner.chat.rendering import Answer, ChatProgram, Compile, Render

RENDER_S = 5.0
"""Limit of processor time, so that a busy machine does not matter. A long chat takes milliseconds."""
_MEMORY_BYTES = 128 << 20
"""Limit of address space beyond what the process has at its start."""
_ANSWER_TIMEOUT_S = 20 * RENDER_S
"""Timeout that is longer than the process can live, also on a busy machine."""
_LIMIT_EXCEEDED = f"it took more than {RENDER_S:g} s or more than {_MEMORY_BYTES >> 20} MiB"
_LENGTH = struct.Struct("<I")


class Sandbox:
    """Process used by one thread at a time.

    It is ended for exceeding a limit, and when its socket closes: with this object, or with our process.
    """

    def __init__(self, compile_: Compile, niceness: int = 0) -> None:
        self._compile = compile_
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket
        self._end_reason = ""
        """Reason for which the process was ended by ``kill``."""
        self._render_since_s: float | None = None

    @property
    def is_running(self) -> bool:
        # NOTE: a process that was killed only just now may still seem to run.
        return self._process is not None and not self._end_reason and self._process.poll() is None

    def start(self) -> None:
        """Start the process. Raises E1701."""
        if self.is_running:
            return
        self._end()
        self._end_reason = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runner.chat.sandbox", str(theirs.fileno()), str(self._niceness)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=own_environment(),
            )
        ours.settimeout(_ANSWER_TIMEOUT_S)
        self._connection = ours
        answer = self._call(encode(self._compile))
        if answer is None:
            raise ChatTemplateBroken(place=self._compile.place, reason=_LIMIT_EXCEEDED)
        if answer.error is not None:
            self._end()
            raise answer.error.restore()

    def render(self, message: bytes) -> Answer:
        """Send the encoded ``Render``. Raises E1701, E1002, E1005, or E1702 with the template's message."""
        self.start()
        self._render_since_s = self._processor_s()
        try:
            answer = self._call(message)
        finally:
            self._render_since_s = None
        if answer is None:
            raise ChatTemplateRefused(reason=self._end_reason or _LIMIT_EXCEEDED)
        if answer.error is not None:
            raise answer.error.restore()
        return answer

    @property
    def render_s(self) -> float:
        """Processor time of the current chat, from any thread."""
        since_s = self._render_since_s
        return 0.0 if since_s is None else self._processor_s() - since_s

    def _processor_s(self) -> float:
        process = self._process
        try:
            # NOTE: the clock of another process, as clock_getcpuclockid(3) makes its number.
            return 0.0 if process is None else time.clock_gettime((~process.pid << 3) | 2)
        except OSError:  # It has ended.
            return 0.0

    def kill(self, reason: str) -> None:
        """End the current chat with E1702, from another thread."""
        self._end_reason = reason
        if (process := self._process) is not None:
            process.kill()

    def _call(self, message: bytes) -> Answer | None:
        """Return None if the process ended over the chat, or had to be ended."""
        try:
            _send(self._connection, message)
            answer: Answer | None = _receive(self._connection, Answer)
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
        # NOTE: after SIGKILL this waits for the kernel only.
        self._end()


def encode(message: Compile | Render | Answer) -> bytes:
    """Encode a message. Raises RecursionError if it is nested too deeply."""
    with suppress(UnicodeEncodeError):
        return msgspec.json.encode(message)
    # Python's JSON takes unpaired surrogates too. It is slower, and lets no other thread run meanwhile.
    fields = {"type": type(message).__name__, **msgspec.structs.asdict(message)}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), default=msgspec.to_builtins)
    return text.encode(errors="surrogatepass")


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket, kind: Any) -> Any | None:
    """Receive a message. Return None if the peer has closed the connection. Raises OSError."""
    head = _receive_exactly(connection, _LENGTH.size)
    body = _receive_exactly(connection, _LENGTH.unpack(head)[0]) if head else b""
    if not body:
        return None
    with suppress(UnicodeDecodeError, msgspec.DecodeError):
        return msgspec.json.decode(body, type=kind)
    return msgspec.convert(json.loads(body), kind)  # It has unpaired surrogates, or integers of any size.


def _receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Receive ``size_bytes``; return nothing if the peer closes the connection first."""
    parts = bytearray()
    while len(parts) < size_bytes:
        data = connection.recv(min(size_bytes - len(parts), 1 << 20))
        if not data:
            return b""
        parts += data
    return bytes(parts)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.nice(int(sys.argv[2]))
    from runner.chat.jinja import compile_template, reason_of

    _set_limits()
    programs: dict[str, ChatProgram] = {}
    message: Compile | Render | None
    while (message := _receive(connection, Compile | Render)) is not None:
        signal.setitimer(signal.ITIMER_PROF, RENDER_S)
        answer = Answer()
        try:
            if isinstance(message, Compile):
                templates = {name: compile_template(text) for name, text in message.sources.items()}
                programs = {name: ChatProgram(each, message) for name, each in templates.items()}
            else:
                answer = programs[message.name].render(message)
        except CodedError as exc:
            answer = Answer(error=WireError.of(exc))
        # NOTE: a template is a program: it fails with its own messages, and with Python's errors as well.
        except Exception as exc:  # noqa: BLE001
            error: CodedError = ChatTemplateRefused(reason=reason_of(exc))
            if isinstance(message, Compile):
                error = ChatTemplateBroken(place=message.place, reason=reason_of(exc))
            answer = Answer(error=WireError.of(error))
        _send(connection, encode(answer))
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
