"""Our end of the process that renders chat templates: started when needed, and again after it had to end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from engine.machine.child_environment import without_secret_variables
from engine.machine.root import SOURCE_ROOT
from errors.chat import ChatTemplateBroken, ChatTemplateRefused
from runner.chat.process import MEMORY_BYTES, RENDER_S, receive, send

_SILENCE_S = 20 * RENDER_S
"""Longer than the process lives at its work, also on a busy machine."""
_ENDED = f"it took more than {RENDER_S:g} s or more than {MEMORY_BYTES >> 20} MiB"


class ChatRenderer:
    """Renders the templates ``sources``, by name, one at a time; from any thread. ``place`` is for errors.

    The process ends when its socket closes: with this object, or with us, however we end.
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
        """Raises E1701, and E1702 with what the template says."""
        with self._lock:
            self._start()
            try:
                answer = self._ask({"name": name, "variables": variables})
            except RecursionError as exc:
                self._end()
                raise ChatTemplateRefused(reason="they are nested too deeply") from exc
        if answer is None:
            raise ChatTemplateRefused(reason=_ENDED)
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
                [sys.executable, "-m", "runner.chat.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        ours.settimeout(_SILENCE_S)
        self._connection = ours
        answer = self._ask({"sources": self._sources})
        if answer is None or "broken" in answer:
            self._end()
            raise ChatTemplateBroken(place=self._place, reason=answer["broken"] if answer else _ENDED)

    def _ask(self, message: object) -> dict[str, Any] | None:
        """None if the process ended over it, or had to be ended."""
        try:
            send(self._connection, message)
            answer: dict[str, Any] | None = receive(self._connection)
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
        # NOTE: waits for nothing but the kernel: SIGKILL.
        self._end()
