"""Renders chats in several sandboxed processes, so that one slow chat does not make others wait."""

from __future__ import annotations

import math
import threading
import time

from errors.coded_error import CodedError
from runner.chat.rendering import Answer, Compile, Render
from runner.chat.sandbox import Sandbox

_MOST_SANDBOXES = 4
_PATIENCE_S = 0.02
"""A chat that has waited so long gets another process, or that of a slow chat."""
_SLOW_S = 0.25
"""A chat takes milliseconds. One that takes so long is ended if all processes are taken."""


class ChatRenderer:
    """Renders the templates of ``compile_``, from any thread. One process is kept ready beside the first."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_
        self._changed = threading.Condition()
        self._idle: list[Sandbox] = []
        self._busy: dict[Sandbox, float] = {}
        """Since when they render, by ``monotonic``."""
        self._num_starting = 0

    def check(self) -> None:
        """Compile now. Raises E1701."""
        sandbox = self._take()
        try:
            sandbox.start()
        finally:
            self._put_back(sandbox)

    def render(self, message: Render) -> Answer:
        """Raises E1701, E1002, E1005, and E1702 with the template's own message."""
        sandbox = self._take()
        try:
            sandbox.start()
            self._busy[sandbox] = time.monotonic()
            return sandbox.render(message)
        finally:
            self._put_back(sandbox)

    def _take(self) -> Sandbox:
        with self._changed:
            while not self._idle:
                if not self._busy and not self._num_starting:
                    self._idle.append(Sandbox(self._compile))
                    self._start_another()
                elif not self._changed.wait(_PATIENCE_S) and not self._start_another():
                    self._end_slowest()
            sandbox = self._idle.pop()
            self._busy[sandbox] = math.inf
            return sandbox

    def _put_back(self, sandbox: Sandbox) -> None:
        with self._changed:
            self._busy.pop(sandbox, None)
            if sandbox.is_running:
                self._idle.append(sandbox)
            else:  # Another one starts without making a chat wait for it.
                self._start_another()
            self._changed.notify()

    def _start_another(self) -> bool:
        """Start one in a thread, unless one is being started. False if there may be no more."""
        if len(self._idle) + len(self._busy) + self._num_starting >= _MOST_SANDBOXES:
            return False
        if not self._num_starting:
            self._num_starting += 1
            threading.Thread(target=self._start, name="chat-sandbox", daemon=True).start()
        return True

    def _start(self) -> None:
        sandbox = Sandbox(self._compile)
        try:
            sandbox.start()
        except (CodedError, OSError):
            return  # A chat that starts one itself gets the error.
        finally:
            with self._changed:
                self._num_starting -= 1
        self._put_back(sandbox)

    def _end_slowest(self) -> None:
        sandbox, since_s = min(self._busy.items(), key=lambda each: each[1], default=(None, math.inf))
        if sandbox is not None and time.monotonic() - since_s > _SLOW_S:
            sandbox.kill(f"it took more than {_SLOW_S:g} s while others waited")
            self._busy[sandbox] = math.inf
