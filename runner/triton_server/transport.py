"""Opens the ways from this process to the slot: its own socket, and Triton's HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from runner.generation.admission import RequestGuard, Transport
from runner.slot.client import SlotClient
from runner.supervision.flight_recorder import RequestShapes
from runner.triton_server.client import TritonClient


@asynccontextmanager
async def open_transport(
    triton_url: str,
    slot_socket: Path | None,
    timeout_s: float,
    down_reason: Callable[[], str | None] = lambda: None,
    shapes: RequestShapes | None = None,
) -> AsyncIterator[tuple[RequestGuard, TritonClient]]:
    """Yield a guard and Triton's client. Without ``slot_socket`` the guard sends its requests to Triton."""
    async with AsyncExitStack() as exits:
        client = await exits.enter_async_context(TritonClient(triton_url, timeout_s))
        transport: Transport = client
        if slot_socket is not None:
            transport = await exits.enter_async_context(SlotClient(slot_socket, timeout_s))
        yield RequestGuard(transport, client, shapes, down_reason), client
