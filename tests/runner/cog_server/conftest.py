"""Shared by the tests of Cog's server."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.runner.servers import DEADLINE_S


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, as Cog has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE_S)
    loop.close()
