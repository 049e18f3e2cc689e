"""The connection to Triton's gRPC API; a server of the library h2 at the other end. No process."""

import struct

import pytest
from h2.events import RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from errors.triton_front import InvalidInference
from runner.triton_server.grpc_wire import INTERNAL, OK, UNAVAILABLE, prefixed
from tests.runner.triton_server.grpc_client.server import HEAD, Server


@pytest.mark.parametrize("window_bytes", [1, 1000, 65_535])
@pytest.mark.parametrize("piece_bytes", [1000, 100_000])
async def test_messages_of_any_size_wait_for_windows_and_arrive_whole(
    window_bytes: int, piece_bytes: int
) -> None:
    server = Server({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
    message = bytes(range(256)) * 800
    first, second = server.begin(0), server.begin(1)
    first.send(message)
    first.send(b"more")
    second.send(b"", is_last=True)
    first.half_close()
    server.exchange()
    assert len(server.data_of(1)) <= window_bytes
    while not (server.happened(StreamEnded, 1) and server.happened(StreamEnded, 3)):
        for stream_id in (1, 3):
            if not server.happened(StreamEnded, stream_id):
                server.h2.increment_flow_control_window(piece_bytes, stream_id)
        server.h2.increment_flow_control_window(piece_bytes)
        server.exchange()
    assert server.data_of(1) == prefixed(message) + prefixed(b"more")
    assert server.data_of(3) == prefixed(b"")


async def test_windows_and_frames_change_while_messages_wait() -> None:
    server = Server()
    call = server.begin(0)
    call.send(b"a" * 100_000, is_last=True)
    server.exchange()
    server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0, SettingCodes.MAX_FRAME_SIZE: 1 << 15})
    server.exchange()
    server.h2.increment_flow_control_window(200_000)
    server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 200_000})
    server.exchange()
    assert server.data_of(1) == prefixed(b"a" * 100_000)
    assert server.happened(StreamEnded, 1)


async def test_answers_are_messages_and_a_status() -> None:
    server = Server()
    for number in range(6):
        server.begin(number).send(b"asked", is_last=True)
        server.exchange()
        stream_id = 2 * number + 1
        status, text = (INTERNAL, f"no {'x' * 20_000} %{number}") if number % 3 == 2 else (OK, "")
        if number < 5:
            server.h2.send_headers(stream_id, HEAD)
            server.h2.send_data(stream_id, prefixed(b"one") + prefixed(b"two")[:3])
            server.h2.send_data(stream_id, prefixed(b"two")[3:])
        trailers = [("grpc-status", str(status)), ("grpc-message", text.replace("%", "%25"))]
        server.h2.send_headers(stream_id, trailers if number < 5 else HEAD + trailers, end_stream=True)
        server.exchange()
        assert server.ends == [(number, status, text)]
        assert server.got == ([(number, b"one"), (number, b"two")] if number < 5 else [])
        server.ends.clear()
        server.got.clear()


async def test_headers_in_several_frames_and_pings() -> None:
    server = Server()
    server.begin(0).send(b"", is_last=True)
    block = Encoder().encode([*HEAD, ("grpc-status", "0")])
    frames = [
        HeadersFrame(1, block[:3], flags=["END_STREAM"]),
        ContinuationFrame(1, block[3:6]),
        ContinuationFrame(1, block[6:], flags=["END_HEADERS"]),
    ]
    server.transport.sent.clear()
    for each in [PingFrame(0, b"12345678"), PingFrame(0, b"12345678", flags=["ACK"]), *frames]:
        for byte in each.serialize():
            server.transport.feed(bytes([byte]))
    assert server.ends == [(0, OK, "")]
    assert bytes(server.transport.sent) == PingFrame(0, b"12345678", flags=["ACK"]).serialize()


async def test_a_call_that_is_left_goes_on_to_its_end_and_its_messages_are_dropped() -> None:
    """Triton 2.51 crashes or stands still at some of the calls that are reset."""
    server = Server({SettingCodes.INITIAL_WINDOW_SIZE: 50})
    calls = [server.begin(number) for number in range(3)]
    calls[0].send(b"a" * 60)
    calls[1].send(b"a", is_last=True)
    for each in calls:
        each.stop_reading()
        each.stop_reading()
    server.exchange()
    assert [server.happened(StreamEnded, each) for each in (1, 3, 5)] == [False, True, True]
    server.h2.increment_flow_control_window(1000, 1)
    server.exchange()
    assert server.data_of(1) == prefixed(b"a" * 60)  # A message that was cut off would be an error.
    assert server.happened(StreamEnded, 1)
    for stream_id in (1, 3, 5):
        server.h2.send_headers(stream_id, HEAD)
        server.h2.send_data(stream_id, prefixed(b"late") + b"cut")
        server.h2.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
    server.exchange()
    assert (server.got, server.ends) == ([], [(number, OK, "") for number in range(3)])
    assert not any(server.happened(StreamReset, each) for each in (1, 3, 5))


async def test_a_call_that_is_reset_hears_nothing_more() -> None:
    server = Server({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    calls = [server.begin(number) for number in range(3)]
    calls[0].send(b"a" * 100)
    calls[0].reset()
    calls[0].send(b"a")
    calls[1].reset()
    calls[2].send(b"a" * 5, is_last=True)
    server.exchange()
    assert [server.happened(StreamReset, each) for each in (1, 3, 5)] == [True, True, False]
    assert server.happened(RequestReceived, 3)
    server.transport.feed(HeadersFrame(1, Encoder().encode(HEAD), flags=["END_HEADERS"]).serialize())
    server.h2.reset_stream(5, 7)
    server.exchange()
    assert server.ends == [(2, UNAVAILABLE, "Triton reset the call (7)")]


async def test_an_answer_that_can_not_be_passed_on_ends_its_call_alone() -> None:
    server = Server()

    def fail(message: bytes) -> None:
        raise ValueError("a client that can't be answered")

    bad = server.connection.begin("/a", [], fail, lambda status, text: server.ends.append((0, status, text)))
    for call in (bad, server.begin(1)):
        call.receive(prefixed(b""))
    assert ([end[:2] for end in server.ends], server.got) == ([(0, INTERNAL)], [(1, b"")])


@pytest.mark.parametrize("by", ["its end", "GOAWAY"])
async def test_all_calls_end_with_the_connection(by: str) -> None:
    server = Server()
    for number in range(2):
        server.begin(number).send(b"")
    server.exchange()
    if by == "GOAWAY":
        server.h2.close_connection()
        server.exchange()
    else:
        server.transport.lose()
    assert [(number, status) for number, status, _ in server.ends] == [(0, UNAVAILABLE), (1, UNAVAILABLE)]
    assert not server.connection.is_open


async def test_metadata_longer_than_a_frame_is_refused() -> None:
    server = Server()
    metadata = [(b"traceparent", b"a" * 16_000)]
    server.connection.begin("/a", metadata, print, print).send(b"")
    server.exchange()
    (request,) = (each for each in server.events if isinstance(each, RequestReceived))
    assert ("traceparent", "a" * 16_000) in request.headers
    with pytest.raises(InvalidInference, match="E1107"):
        server.connection.begin("/a", metadata * 2, print, print)


@pytest.mark.parametrize("is_left", [False, True])
async def test_more_than_a_window_is_received(is_left: bool) -> None:
    """Exceed the windows of the connection, and of a call that lasts for days."""
    server = Server()
    call = server.begin(0)
    call.send(b"", is_last=True)
    if is_left:
        call.stop_reading()
    server.exchange()
    stream = server.h2._get_stream_by_id(1)
    before = server.h2.outbound_flow_control_window, stream.outbound_flow_control_window
    server.connection._credit_bytes = call.credit_bytes = 1 << 30  # As if Triton had sent the rest of it.
    server.h2.outbound_flow_control_window -= (1 << 30) - 1 + 5
    stream.outbound_flow_control_window -= (1 << 30) - 1 + 5
    server.transport.feed(struct.pack(">HBBBI", 0, 5, 0, 0, 1) + bytes(5))
    server.exchange()
    assert server.got == ([] if is_left else [(0, b"")])
    assert (server.h2.outbound_flow_control_window, stream.outbound_flow_control_window) == before


async def test_a_call_that_triton_ends_twice_ends_no_other() -> None:
    server = Server()
    for number in range(2):
        server.begin(number).send(b"", is_last=True)
    encoder = Encoder()

    def end(stream_id: int) -> bytes:
        fields = [*HEAD, ("grpc-status", "13")]
        head = HeadersFrame(stream_id, encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"])
        return head.serialize() + RstStreamFrame(stream_id).serialize()

    server.transport.feed(SettingsFrame(0).serialize() + end(1) + end(1) + end(1))
    assert (server.ends, server.transport.is_closing()) == ([(0, 13, "")], False)
    server.transport.feed(end(3))
    assert server.ends == [(0, 13, ""), (1, 13, "")]
