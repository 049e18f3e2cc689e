"""The body of a streamed answer: written to its connection, past uvicorn."""

from __future__ import annotations

import asyncio

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_MOST_WAITING = 32
"""With more, the first would wait for long; with fewer, clients sleep in between (docs/measurements/)."""


class _Writes:
    """Sends what many streams write in one step of the event loop in quick succession.

    A client of many streams then stays awake for them; to wake it costs more than to send it an event.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send)
        self._waiting.append((transport, data))
        if len(self._waiting) == _MOST_WAITING:
            self.send()

    def send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            transport.write(data)


_WRITES = _Writes()


class ConnectionBody:
    """See ``runner.api.call.Body``."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    async def send(self, message: Message) -> None:
        _WRITES.send()
        await self._cycle.send(message)  # type: ignore[arg-type]

    def is_ready(self) -> bool:
        return not (self._cycle.flow.write_paused or self._cycle.disconnected)

    def write(self, data: bytes) -> None:
        _WRITES.add(self._cycle.transport, b"%x\r\n%b\r\n" % (len(data), data))


class JoinedHead:
    """The transport of an answer until its body begins: sends its head with that, which uvicorn does not."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._cycle.transport = self._transport
            self._transport.write(self._head + data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()
