"""The front's connection to Triton, fed by hand. No process."""

from __future__ import annotations

import asyncio

from hpack import Encoder
from hyperframe.frame import HeadersFrame, RstStreamFrame, SettingsFrame

from runner.triton_server.front.triton import _Connection
from tests.runner.triton_server.front.transport import Transport


def test_a_call_that_triton_ends_twice_ends_no_other() -> None:
    async def work() -> None:
        connection = _Connection("triton")
        transport = Transport(connection)
        ends: list[tuple[int, int]] = []

        def end_of(number: int, status: int, _: str) -> None:
            ends.append((number, status))

        for number in range(2):
            call = connection.begin(
                "/a", [], lambda _: None, lambda status, _, of=number: ends.append((of, status))
            )
            call.send(b"", is_last=True)
        encoder = Encoder()

        def end(stream_id: int) -> bytes:
            fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "13")]
            head = HeadersFrame(stream_id, encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"])
            return head.serialize() + RstStreamFrame(stream_id).serialize()

        transport.feed(SettingsFrame(0).serialize() + end(1) + end(1) + end(1))
        assert (ends, transport.is_closing()) == ([(0, 13)], False)
        transport.feed(end(3))
        assert ends == [(0, 13), (1, 13)]

    asyncio.run(work())
