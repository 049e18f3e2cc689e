"""HTTP/2 connections of clients, fed by hand: floods, bombs, windows that stay closed. No process."""

import asyncio
import struct
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, ResponseReceived
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from runner.supervision import turns as turns_module
from runner.supervision.turns import Turns
from runner.triton_server.front.grpc import server as server_module
from runner.triton_server.front.grpc.server import _MAX_MESSAGES
from tests.fuzz.triton_standin import stand_in
from tests.runner.triton_server.front.grpc.client import (
    EMPTY,
    MAX_BODY_BYTES,
    RESOURCE_EXHAUSTED,
    Client,
)
from tests.runner.triton_server.transport import Transport, check_freed_when_lost


def _headers(number: int, size: int = 10) -> list[Frame]:
    return [HeadersFrame(1, data=b"\0" + b"a" * size), *[ContinuationFrame(1, data=b"a" * size)] * number]


_ENTRY = b"\x40\x01a\x7f" + bytes([0x80 | (3900 - 127) % 128, (3900 - 127) // 128]) + b"b" * 3900
"""A header that HPACK adds to its table, and that a byte repeats."""
FLOODS: dict[str, list[Frame]] = {
    "pings": [PingFrame(0, b"12345678")] * 20_000,
    "settings": [SettingsFrame(0, settings={4: 100_000})] * 20_000,
    "settings of header tables": [SettingsFrame(0, settings={1: 1 << 30})] * 20_000,
    "windows": [WindowUpdateFrame(0, window_increment=1)] * 20_000,
    "priorities": [PriorityFrame(1, depends_on=3)] * 20_000,
    "unknown frames": [ExtensionFrame(type=99, stream_id=0, body=b"")] * 20_000,
    "empty continuations": [HeadersFrame(1, data=b""), *[ContinuationFrame(1, data=b"")] * 20_000],
    "continuations": _headers(2000, 10_000),
    "resets of streams that are not open": [RstStreamFrame(1, 0)] * 10,
    "a bomb of headers": [HeadersFrame(1, data=_ENTRY + b"\xbe" * 12_000, flags=["END_HEADERS"])],
}


@pytest.mark.parametrize("frames", FLOODS.values(), ids=FLOODS)
async def test_floods_close_the_connection(frames: list[Frame]) -> None:
    client = await Client().open(is_one_second=True)
    for at in range(0, len(frames), 100):
        if not client.is_closed:
            await client.feed_frames(frames[at : at + 100])
    assert client.transport.is_closing()
    assert len(client.transport.sent) < 200_000


@pytest.mark.parametrize("size", [0, 1, 100])
async def test_data_in_tiny_frames_closes_the_connection(size: int) -> None:
    client = await Client().open(is_one_second=True)
    stream_id = client.begin("ModelInfer")
    client.h2.send_data(stream_id, struct.pack(">BI", 0, MAX_BODY_BYTES))
    await client.flush()
    for _ in range(30):
        if not client.is_closed:
            await client.feed_frames([DataFrame(stream_id, b"a" * size)] * 100)
    assert client.transport.is_closing()
    assert client.budget.held_bytes == len(client.server.open) == 0


REFUSED: dict[str, Callable[[Client], None]] = {
    "empty messages": lambda client: client.h2.send_data(client.begin("ModelStreamInfer"), EMPTY * 90),
    "calls of no method": lambda client: client.h2.end_stream(client.begin("Nothing")),
    "calls without a message": lambda client: client.h2.end_stream(client.begin("ModelInfer")),
    "calls of closed endpoints": lambda client: client.h2.end_stream(client.begin("TraceSetting")),
}


@pytest.mark.parametrize("send", REFUSED.values(), ids=REFUSED)
async def test_requests_that_are_refused_are_processed_in_turn_and_then_close_the_connection(
    send: Callable[[Client], None],
) -> None:
    client = await Client(inferences=stand_in()[1]).open(is_one_second=True)
    send(client)
    client.transport.feed(client.h2.data_to_send())
    assert client.connection._refusals <= 2 * _MAX_MESSAGES
    await client.feed(b"")
    for _ in range(1100):
        if not client.is_closed:
            send(client)
            await client.flush()
    assert client.transport.is_closing()
    (end,) = (each for each in client.events if isinstance(each, ConnectionTerminated))
    assert end.error_code == ErrorCodes.ENHANCE_YOUR_CALM
    assert client.budget.held_bytes == len(client.server.open) == 0


async def test_requests_without_a_place_close_no_connection() -> None:
    """It is no fault of their client."""
    client = await Client(inferences=stand_in()[1]).open(is_one_second=True)
    client.inferences.running = client.inferences.max_requests
    for _ in range(1200):
        client.begin("ModelStreamInfer")
        if not client.is_closed:
            await client.flush()
    assert not client.is_closed


async def test_only_so_many_connections_are_read_in_a_step_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "_STEP_S", 0.0)
    client = Client()
    client.h2.initiate_connection()
    stream_id = client.ask("ServerReady")
    client.transport.feed(client.h2.data_to_send())
    assert not client.transport.is_reading()
    monkeypatch.setattr(turns_module, "_STEP_S", 1.0)
    await client.feed(b"")
    assert client.trailers(stream_id)["grpc-status"] == "0"


async def test_frames_that_are_much_work_are_read_in_turn() -> None:
    """Each SETTINGS frame changes the windows of all streams."""
    client = await Client(is_ready=True).open()
    client.inferences.max_requests = 1000
    for _ in range(1000):
        client.begin("ModelStreamInfer")
    data = client.h2.data_to_send()
    client.transport.feed(data[:1024])
    assert len(client.server.open) < 20
    await client.settle()
    await client.feed(data[1024:])
    assert len(client.server.open) == 1000
    reads: list[int] = []
    read = client.connection._h2.receive_data

    def counted(data: bytes) -> list[Event]:
        reads.append(len(data))
        return read(data)

    client.connection._h2.receive_data = counted
    frames = [SettingsFrame(0, settings={4: 1000 + number % 2}) for number in range(200)]
    await client.feed_frames(frames)
    assert sum(reads) == 15 * 200
    assert max(reads) <= 15 * 16
    assert not client.is_closed


async def test_a_read_may_end_anywhere_in_a_frame() -> None:
    client = Client(is_ready=False)
    client.h2.initiate_connection()
    stream_id = client.ask("ServerReady")
    for byte in client.h2.data_to_send():
        await client.feed(bytes([byte]))
    assert client.trailers(stream_id)["grpc-status"] == "0"


async def test_settings_that_nobody_knows_are_not_kept() -> None:
    client = await Client().open()
    for first, is_closed in ((1000, False), (1000, False), (2000, True)):
        settings = b"".join(struct.pack(">HI", number, 1) for number in range(first, first + 50))
        await client.feed(struct.pack(">HBBBI", *divmod(len(settings), 256), 4, 0, 0) + settings)
        assert client.is_closed == is_closed


async def test_a_large_table_of_headers_is_not_used() -> None:
    client = await Client().open()
    client.h2.decoder.max_allowed_table_size = 1 << 30
    await client.feed_frames([SettingsFrame(0, settings={1: 1 << 30})])
    for number in range(50):
        trailers = await client.call(f"/{'x' * 150}{number}", EMPTY)
        assert trailers["grpc-message"].endswith(str(number))
    assert client.connection._h2.encoder.header_table._current_size <= 4096
    assert not client.is_closed


async def test_rapid_resets_close_the_connection() -> None:
    client = await Client(is_ready=True).open(is_one_second=True)
    for _ in range(1100):
        client.h2.reset_stream(client.begin("ModelStreamInfer"))
    client.transport.feed(client.h2.data_to_send())
    await client.settle()
    assert client.transport.is_closing()
    assert len(client.server.open) == 0


async def test_answers_to_streams_that_are_reset_in_the_same_read_harm_nobody() -> None:
    client = await Client().open()
    for method in ("ServerReady", "Nothing"):
        client.h2.reset_stream(client.ask(method))
        await client.flush()
    assert (await client.call("ServerReady", EMPTY))["grpc-status"] == "0"
    assert len(client.server.open) == 0


async def test_ten_thousand_streams_are_bounded_over_all_connections() -> None:
    client = await Client(is_ready=True).open()
    for _ in range(300):
        client.begin("ModelStreamInfer")
    await client.flush()
    assert len(client.server.open) == 200  # Twice the requests that may run.
    refused = [each for each in client.events if isinstance(each, ResponseReceived)]
    assert len(refused) == 100
    assert dict(refused[0].headers)["grpc-status"] == str(RESOURCE_EXHAUSTED)
    other = Client(inferences=client.inferences)
    other.connection.server = other.server = client.server
    client.server.add(other.connection)
    await other.open()
    assert "has no message" in (await other.call("ModelInfer", b""))["grpc-message"]
    assert len(client.server.open) == 199  # One of the client with the most gave way.
    client.inferences.max_requests = 100_000
    client.h2.remote_settings.max_concurrent_streams = 5000  # It does not keep to the server's.
    client.h2.remote_settings.acknowledge()
    for _ in range(1000):
        client.begin("ModelStreamInfer")
    await client.flush()
    assert client.transport.is_closing()
    assert len(client.server.open) == 0


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\0" * 100, b"\0" * 50_000])
async def test_what_is_no_http_2_closes_the_connection(data: bytes) -> None:
    client = Client()
    client.transport.feed(data)
    assert client.transport.is_closing()


async def test_unread_answers_of_a_client_whose_windows_stay_closed_are_bounded() -> None:
    client = await Client().open(window_bytes=0)
    for _ in range(2000):
        if client.is_closed:
            break
        client.ask("ServerReady")
        await client.flush()
    assert client.transport.is_closing()
    assert len(client.server.open) == 0


async def test_answers_wait_for_their_windows_and_then_arrive() -> None:
    client = await Client().open(window_bytes=0)
    stream_ids = [client.ask("/grpc.health.v1.Health/Check") for _ in range(20)]
    await client.flush()
    assert client.connection.unsent_bytes > 0
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    await client.flush()
    assert all(client.trailers(each)["grpc-status"] == "0" for each in stream_ids)
    assert client.connection.unsent_bytes == 0


@pytest.mark.parametrize("frame", [SettingsFrame(0), WindowUpdateFrame(0, window_increment=1)])
async def test_a_read_tries_what_waits_for_windows_once(
    frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client().open(window_bytes=0)
    for _ in range(50):
        client.ask("/grpc.health.v1.Health/Check")
    await client.flush()
    tried: list[int] = []

    def send_what_fits(stream_id: int, part: object) -> bool:
        tried.append(stream_id)
        return False

    monkeypatch.setattr(client.connection, "_send_what_fits", send_what_fits)
    client.connection.receive(frame.serialize() * 500)
    assert len(tried) == 50


@pytest.mark.parametrize(
    "frame", [DataFrame(1, b""), WindowUpdateFrame(1, window_increment=1), RstStreamFrame(1, error_code=8)]
)
async def test_frames_of_a_stream_that_is_closed_are_a_flood(frame: Frame) -> None:
    """h2 gives no event for them."""
    client = await Client().open(is_one_second=True)
    assert client.begin("Nothing") == 1
    await client.flush()
    await client.feed_frames([frame] * 500)
    assert not client.is_closed
    for _ in range(20):
        await client.feed_frames([*[frame] * 50, PingFrame(0, b"a" * 8)])
    assert client.is_closed


async def test_connections_with_useless_frames_are_read_in_turn() -> None:
    turns = Turns()
    transports = [Transport(asyncio.BufferedProtocol()) for _ in range(3)]
    for each in transports:
        assert turns.after_read(each, 16, 1024) == 2048
        assert each.is_reading()
        assert turns.after_read(each, 100, 4096) == 1024
        assert not each.is_reading()
    transports[1].abort()
    await asyncio.sleep(0.2)
    assert [each.is_reading() for each in transports] == [True, False, True]


async def test_headers_that_have_no_end_yet_count_as_held() -> None:
    """Thousands of connections may each keep 48 KiB of them."""
    client = await Client().open()
    begin = HeadersFrame(1, b"\x00\x01a\x7f\xa1\x1e" + b"b" * 8000)
    await client.feed(begin.serialize())
    assert 8000 < client.budget.held_bytes < 9000
    await check_freed_when_lost(client)
    assert client.budget.held_bytes == 0


class _Connection:
    """A connection whose ``abort`` returns before it is lost, as with asyncio."""

    def __init__(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


async def test_connections_that_come_at_once_each_take_anothers_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 100
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", most)
    server = Client().server
    server.connections.clear()
    first = [_Connection(is_idle=number >= 10) for number in range(most)]
    further = [_Connection(is_idle=False) for _ in range(most)]
    for each in [*first, *further]:
        server.add(each)
    assert len(server.connections) == most
    assert [each.is_aborted for each in first] == [each.is_idle for each in first]
    assert [each.is_aborted for each in further].index(True) == most - 10
