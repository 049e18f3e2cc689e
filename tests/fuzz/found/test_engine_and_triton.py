"""What fuzzing found of the engine server, Triton and their clients: tracebacks, hangs, lost requests."""

import asyncio
import struct
from pathlib import Path

import pytest
from msgspec import msgpack

from errors.coded_error import CodedError
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Finished, Submit
from runner.engines.protocol.wire import frame
from tests.fuzz.engine_socket import GOOD, READY
from tests.fuzz.engine_socket import server as engine_server
from tests.runner.engines.engine_server import EngineServerClient

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", (1 << 32) - 1),
        struct.pack("<I", 1) + b"\x07",
        struct.pack("<I", len(DEEP)) + DEEP.replace(b"[", b"\x91"),
        frame(msgpack.Encoder(), [{"type": "Tokens", "new": [[1, [-1]]]}]),
        frame(msgpack.Encoder(), [{"type": "Tokens", "new": [[1, [1 << 32]]]}]),
    ],
    ids=["no msgpack", "four gigabytes", "no messages", "nested", "a negative token", "a large token"],
)
async def test_garbage_from_the_engine_server_is_e2107_at_once_and_the_next_request_connects_anew(
    tmp_path: Path, hostile: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(msgpack.Encoder(), [READY]))
        await reader.readexactly(4)
        writer.write(hostile)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "engine"))
    async with server, EngineClient(tmp_path / "engine", 200.0, "paced") as client:
        for _ in range(2):
            while not client.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with pytest.raises(CodedError, match="E2107"):
                async for _ in client.generate(GOOD):
                    pass


def test_an_id_used_again_leaves_nothing_when_the_client_leaves() -> None:
    """The end of the first request must not take the second out of the client's list."""
    server = engine_server()
    for _ in range(20):
        client = EngineServerClient(server.path)
        client.send(*[Submit(1, [5], max_tokens=1)] * 2)
        while not isinstance(client.receive(), Finished):
            pass
        client.close()
        server.check()
