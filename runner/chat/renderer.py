"""Renderer of chats in several sandboxed processes, so that slow or large chats do not make others wait."""

import threading

from errors.chat import ChatTemplateRefused
from errors.coded_error import CodedError
from errors.requests import PromptTooLong
from runner.chat.rendering import Answer, Compile, Render
from runner.chat.sandbox import Sandbox, encode

_MOST_SANDBOXES = 2
"""Number of processes for chats that never take long, and of others for large chats."""
_LARGE_BYTES = 1 << 16
_LARGE_NICENESS = 10
"""Niceness that lets running streams go before large chats."""
_PATIENCE_S = 0.02
"""Wait after which a chat gets another process, or that of a slow chat."""
_SLOW_S = 0.1
"""Processor time after which a chat is ended for one that waits. Most take milliseconds."""


class ChatRenderer:
    """Renderer of the templates of ``compile_``, from any thread."""

    def __init__(self, compile_: Compile) -> None:
        self._max_bytes = compile_.max_bytes
        self._small = _Sandboxes(compile_)
        self._large = _Sandboxes(compile_, _LARGE_NICENESS)

    def check(self) -> None:
        """Compile now. Raises E1701."""
        sandbox = self._small.take()
        try:
            sandbox.start()
        finally:
            self._small.put_back(sandbox)

    def render(self, message: Render) -> Answer:
        """Render a chat. Raises E1701, E1002, E1005, and E1702 with the template's own message."""
        try:
            data = encode(message)
        except RecursionError as exc:
            raise ChatTemplateRefused(reason="they are nested too deeply") from exc
        if len(data) > self._max_bytes:
            raise PromptTooLong.in_bytes(prompt_bytes=len(data), max_bytes=self._max_bytes)
        sandboxes = self._large if len(data) > _LARGE_BYTES else self._small
        sandbox = sandboxes.take()
        try:
            return sandbox.render(data)
        finally:
            sandboxes.put_back(sandbox)


class _Sandboxes:
    """Processes for chats of one size. One is kept ready beside the first."""

    def __init__(self, compile_: Compile, niceness: int = 0) -> None:
        self._compile = compile_
        self._niceness = niceness
        self._changed = threading.Condition()
        self._idle: list[Sandbox] = []
        self._busy: set[Sandbox] = set()
        self._num_starting = 0

    def take(self) -> Sandbox:
        with self._changed:
            while not self._idle:
                if not self._busy and not self._num_starting:
                    self._idle.append(Sandbox(self._compile, self._niceness))
                    self._start_another()
                elif not self._changed.wait(_PATIENCE_S) and not self._start_another():
                    self._end_slowest()
            sandbox = self._idle.pop()
            self._busy.add(sandbox)
            return sandbox

    def put_back(self, sandbox: Sandbox) -> None:
        with self._changed:
            self._busy.discard(sandbox)
            if sandbox.is_running:
                self._idle.append(sandbox)
            else:  # Another one starts without making a chat wait for it.
                self._start_another()
            self._changed.notify_all()

    def _start_another(self) -> bool:
        """Start a process in a thread, unless one is being started. False if there may be no more."""
        if len(self._idle) + len(self._busy) + self._num_starting >= _MOST_SANDBOXES:
            return False
        if not self._num_starting:
            self._num_starting += 1
            threading.Thread(target=self._start, name="chat-sandbox", daemon=True).start()
        return True

    def _start(self) -> None:
        sandbox = Sandbox(self._compile, self._niceness)
        try:
            sandbox.start()
        except (CodedError, OSError):
            return  # A chat that starts one itself gets the error.
        finally:
            with self._changed:
                self._num_starting -= 1
        self.put_back(sandbox)

    def _end_slowest(self) -> None:
        slowest = max(self._busy, key=lambda each: each.render_s, default=None)
        if slowest is not None and slowest.render_s > _SLOW_S:
            slowest.kill(f"it took more than {_SLOW_S:g} s while others waited")
