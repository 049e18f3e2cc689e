"""Flow control of one connection: when it is read, and when its client reads."""

import asyncio


class FlowControl:
    """A connection that is read unless something pauses it; each reason ends by itself."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pauses: set[str] = set()
        self._writable = asyncio.Event()
        self._writable.set()

    def pause_reading(self, reason: str) -> None:
        if not self._pauses:
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume_reading(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.discard(reason)
            if not self._pauses:
                self._transport.resume_reading()

    @property
    def is_writable(self) -> bool:
        """True while the client reads what is written."""
        return self._writable.is_set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has read enough, or the connection is lost."""
        await self._writable.wait()
