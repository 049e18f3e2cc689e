"""Check of guides in a process that ends if one exceeds a limit: ``python -m runner.engines.guides.check``.

llguidance has limits of its own, but several patterns in one ``allOf``, or a few ``multipleOf``, take any
time and memory without exceeding them. So a fork of this process compiles each guide first, with limits of
the kernel, for a vocabulary of the 256 bytes. A guide that passes costs the engine server as little.

A line of the input is a guide and its processor time, a line of the output is an ``Answer``, or null if the
guide exceeded a limit.
"""

import ctypes
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

from engine.machine.processes import StoppedWatch, descendants
from engine.machine.root import own_environment
from errors.coded_error import CodedError
from errors.engines import GuideCheckFailed
from errors.requests import InvalidGuide
from errors.wire import WireError
from runner.engines.guides.errors import first_line
from runner.engines.protocol.messages import Guide

MEMORY_BYTES = 64 << 20
"""Limit of address space beyond what the process has, its stack included."""
_STACK_BYTES = 8 << 20
PROCESS_NAME = b"guide-check"
"""Name by which the engine server's supervisor ignores this process: it is replaced here."""
_TIMEOUT_S = 120.0
"""Limit of the wait for an answer. Processor time takes long on a busy machine."""
_POLL_S = 0.25
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NICENESS = 10
"""Low priority, so that running streams go first."""

log = logging.getLogger("cog_triton.engine")


class Answer(msgspec.Struct):
    grammar: str = ""
    """Grammar for llguidance."""
    num_bytes: int = 0
    """Approximate memory of the compiled guide."""
    error: WireError | None = None
    """Error, set instead of the others."""


class Checker:
    """The process that checks. Used by one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, guide: Guide, cpu_s: float) -> Answer | None:
        """Check a guide. Return None if it exceeds a limit. Raises E2115 if the process can't run."""
        try:
            for _ in range(2):  # It may have been killed since the last guide, or be stopped.
                line = self._ask(msgspec.json.encode((guide, cpu_s)) + b"\n")
                if line.endswith(b"\n"):
                    return msgspec.json.decode(line, type=Answer | None)
                self._end()
            raise OSError("its process ended twice")
        except OSError as exc:
            log.error(
                "no guide can be checked (%s); to see why, run: %s -m %s", exc, sys.executable, __name__
            )
            raise GuideCheckFailed(guide_type=guide.type, reason=exc) from exc

    def _ask(self, line: bytes) -> bytes:
        """Return the answer; a part of it if the process has ended, is stopped or hangs."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=own_environment(),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        to_send, to_receive = self._process.stdin.fileno(), self._process.stdout.fileno()
        answer, stopped, end_s = b"", StoppedWatch(), time.monotonic() + _TIMEOUT_S
        while not answer.endswith(b"\n"):
            received, sent, _ = select.select([to_receive], [to_send] if line else [], [], _POLL_S)
            if sent:
                try:
                    line = line[os.write(to_send, line[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    return b""
            if received:
                if not (part := os.read(to_receive, 1 << 16)):
                    return b""
                answer += part
            if not sent and not received:
                pid = self._process.pid
                if stopped.find([pid, *descendants(pid)]) is not None or time.monotonic() > end_s:
                    return b""
        return answer

    def _end(self) -> None:
        """End the process and its fork, so that the next guide gets a new one."""
        process, self._process = self._process, None
        assert process is not None
        with process:
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()


def main() -> None:
    from llguidance import LLTokenizer

    from runner.engines.guides.grammar import grammar_of

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # Its parent may end while it is stopped.
    libc.prctl(_PR_SET_NAME, PROCESS_NAME, 0, 0, 0)
    os.nice(_NICENESS)
    tokenizer = LLTokenizer("byte")
    for line in sys.stdin.buffer:
        guide, cpu_s = msgspec.json.decode(line, type=tuple[Guide, float])
        if not (child := os.fork()):
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            before_bytes = _set_limits(cpu_s)
            try:
                grammar = grammar_of(guide, tokenizer)
                answer = Answer(grammar, _peak_bytes() - before_bytes)
            except CodedError as error:
                answer = Answer(error=WireError.of(error))
            except MemoryError:
                os._exit(1)
            # An unknown error of the library fails this guide; its request must not wait for ever.
            except Exception as exc:  # noqa: BLE001
                reason = f"{type(exc).__name__}: {first_line(str(exc))}"
                answer = Answer(error=WireError.of(InvalidGuide(guide_type=guide.type, reason=reason)))
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write(msgspec.json.encode(answer))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            _write(b"null")


def _write(answer: bytes) -> None:
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()


def _set_limits(cpu_s: float) -> int:
    """Set the limits. Return the peak memory until now."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        has_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for limit, most in (
        (resource.RLIMIT_AS, has_bytes + MEMORY_BYTES),
        (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    return _peak_bytes()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
