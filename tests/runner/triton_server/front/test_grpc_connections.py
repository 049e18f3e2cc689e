"""HTTP/2 connections of clients, fed by hand: floods, bombs, windows that stay closed. No process."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, ResponseReceived, TrailersReceived
from h2.exceptions import StreamClosedError
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
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from errors.triton_front import TooManyInferences
from runner.settings.api_keys import APIKeys
from runner.supervision.turns import Turns
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.grpc_server import GRPCServer
from runner.triton_server.front.grpc_wire import SERVICE, Messages, TooLong
from runner.triton_server.front.inference import Inferences
from tests.fuzz.triton_standin import StandInTriton, stand_in
from tests.runner.triton_server.front.transport import Transport

OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 0, 3, 8, 12, 13, 16
MAX_BODY_BYTES = 1 << 20
EMPTY = b"\0\0\0\0\0"


class _Inferences:
    """A stand-in: Triton is connected, and gets nothing here."""

    is_connected = True
    running = 0
    max_requests = 100

    def check_room(self) -> None:
        if self.running >= self.max_requests:
            raise TooManyInferences(running=self.running)


class Client:
    """``is_ready``: of the engine. If it is not, the front answers ServerReady without Triton."""

    def __init__(
        self, keys: tuple[str, ...] = (), *, is_ready: bool = False, inferences: Inferences | None = None
    ) -> None:
        self.inferences: Any = inferences or _Inferences()
        self.budget = Budget(4 << 20)
        self.server = GRPCServer(
            self.inferences,
            APIKeys(keys),
            self.budget,
            lambda: is_ready,
            max_body_bytes=MAX_BODY_BYTES,
            is_managed=False,
        )
        self.connection = self.server.connection()
        self.transport = Transport(self.connection)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self._read = 0

    async def open(self, window_bytes: int | None = None) -> None:
        self.h2.initiate_connection()
        if window_bytes is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        await self.flush()

    async def flush(self) -> None:
        await self.feed(self.h2.data_to_send())

    async def feed(self, data: bytes) -> None:
        self.transport.feed(data)
        await self.settle()
        sent = bytes(self.transport.sent[self._read :])
        self._read += len(sent)
        self.events += self.h2.receive_data(sent)

    async def settle(self) -> None:
        """Until the server has read all, in turns, and has sent what it writes for it."""
        while not (self.transport.is_reading_now or self.transport.is_closing()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)

    async def feed_frames(self, frames: list[Frame]) -> None:
        await self.feed(b"".join(each.serialize() for each in frames))

    def begin(self, method: str, *more: tuple[str, str]) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)]
        self.h2.send_headers(stream_id, [*head, ("te", "trailers"), *more])
        return stream_id

    async def call(self, method: str, data: bytes, *more: tuple[str, str]) -> dict[str, str]:
        """The trailers of a call."""
        stream_id = self.begin(method, *more)
        with suppress(StreamClosedError):  # The server has refused it.
            for at in range(0, len(data), 1 << 14):
                self.h2.send_data(
                    stream_id, data[at : at + (1 << 14)], end_stream=at + (1 << 14) >= len(data)
                )
                await self.flush()
            if not data:
                self.h2.end_stream(stream_id)
                await self.flush()
        return self.trailers(stream_id)

    def trailers(self, stream_id: int) -> dict[str, str]:
        ends = [
            each
            for each in self.events
            if isinstance(each, ResponseReceived | TrailersReceived) and each.stream_id == stream_id
        ]
        return dict(ends[-1].headers) if ends else {}  # type: ignore[arg-type]

    @property
    def is_closed(self) -> bool:
        return self.transport.is_closing() or any(
            isinstance(each, ConnectionTerminated) for each in self.events
        )


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def prefixed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">BI", 0, len(each)) + each for each in messages)


@given(st.lists(st.binary(max_size=300), max_size=10), st.data())
def test_every_split_into_reads_gives_the_same_messages(messages: list[bytes], data: st.DataObject) -> None:
    stream = prefixed(*messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)) | {0, len(stream)})
    whole, split = Messages(300), Messages(300)
    assert whole.feed(stream) == messages
    found = [each for at, end in pairwise(cuts) for each in split.feed(stream[at:end])]
    assert found == messages
    assert whole.num_bytes == split.num_bytes == 0


@pytest.mark.parametrize("piece_bytes", [1, 100])
@pytest.mark.parametrize("data", [struct.pack(">BI", 0, 301), b"\1" + prefixed(b"a")[1:]])
def test_messages_that_are_too_long_or_compressed_are_known_by_their_prefix(
    data: bytes, piece_bytes: int
) -> None:
    messages = Messages(300)

    def feed_all() -> None:
        for at in range(0, len(data), piece_bytes):
            messages.feed(data[at : at + piece_bytes])

    with pytest.raises(TooLong):
        feed_all()
    assert messages.num_bytes <= 100


@pytest.mark.parametrize(
    ("method", "data", "status", "said"),
    [
        ("ServerReady", EMPTY, OK, ""),
        ("ModelReady", prefixed(b"\x0a\x01a"), OK, ""),
        ("/grpc.health.v1.Health/Check", EMPTY, OK, ""),
        ("ServerReady", b"", INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"", INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"\1\0\0\0\0", INVALID_ARGUMENT, "compressed"),
        ("ModelInfer", prefixed(b"\xff" * 100), INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED, "TRITON_MAX_BODY_BYTES"),
        ("ModelInfer", prefixed(b"a" * (MAX_BODY_BYTES + 1)), RESOURCE_EXHAUSTED, "E1110"),
        ("ModelStreamInfer", b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED, "E1110"),
        ("ServerReady", prefixed(b"a" * 70_000), RESOURCE_EXHAUSTED, "E1110"),
        ("RepositoryModelLoad", EMPTY, 7, "E1109"),
        ("TraceSetting", EMPTY, 7, "E1109"),
        ("Nothing", EMPTY, UNIMPLEMENTED, "no method"),
        ("/grpc.health.v1.Health/Watch", EMPTY, UNIMPLEMENTED, "no method"),
        ("/" + "a" * 5000, EMPTY, UNIMPLEMENTED, "no method"),
        ("/../" + SERVICE + "/ModelInfer", EMPTY, UNIMPLEMENTED, "no method"),
    ],
)
def test_a_call_is_answered_or_has_a_sentence(method: str, data: bytes, status: int, said: str) -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        trailers = await client.call(method, data)
        assert int(trailers["grpc-status"]) == status
        assert said in trailers.get("grpc-message", "").replace("%20", " ")
        assert len(trailers.get("grpc-message", "")) < 500
        assert not client.is_closed
        assert (len(client.server.open), client.budget.held_bytes) == (0, 0)

    run(work)


def test_several_messages_on_a_unary_call_are_refused() -> None:
    async def work() -> None:
        client = Client(is_ready=True)
        client.inferences.is_connected = False  # So that the messages wait.
        client.inferences.connect = asyncio.Event().wait
        await client.open()
        stream_id = client.begin("ServerReady")
        client.h2.send_data(stream_id, EMPTY * 3)
        await client.flush()
        assert len(client.server.open) == 1
        client.transport.lose()
        assert len(client.server.open) == 0

    run(work)


def test_keys_are_checked_before_a_message_is_received() -> None:
    async def work() -> None:
        client = Client(keys=("the-key",))
        await client.open()
        for given_key in ([], [("authorization", "Bearer other")], [("authorization", "the-key")]):
            assert (await client.call("ServerReady", EMPTY, *given_key))["grpc-status"] == str(
                UNAUTHENTICATED
            )
        right = ("authorization", "bearer the-key")
        assert (await client.call("ServerReady", EMPTY, right))["grpc-status"] == "0"
        assert (await client.call("/grpc.health.v1.Health/Check", EMPTY))["grpc-status"] == "0"

    run(work)


def _headers(number: int, size: int = 10) -> list[Frame]:
    return [HeadersFrame(1, data=b"\0" + b"a" * size), *[ContinuationFrame(1, data=b"a" * size)] * number]


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
}


@pytest.mark.parametrize("frames", FLOODS.values(), ids=FLOODS)
def test_floods_close_the_connection(frames: list[Frame]) -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        client.connection._since_s = math.inf
        for at in range(0, len(frames), 100):
            if not client.is_closed:
                await client.feed_frames(frames[at : at + 100])
        assert client.transport.is_closing()
        assert len(client.transport.sent) < 200_000

    run(work)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_data_in_tiny_frames_closes_the_connection(size: int) -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        client.connection._since_s = math.inf
        stream_id = client.begin("ModelInfer")
        client.h2.send_data(stream_id, struct.pack(">BI", 0, MAX_BODY_BYTES))
        await client.flush()
        for _ in range(30):
            if not client.is_closed:
                await client.feed_frames([DataFrame(stream_id, b"a" * size)] * 100)
        assert client.transport.is_closing()
        assert client.budget.held_bytes == len(client.server.open) == 0

    run(work)


def test_frames_that_are_much_work_are_read_in_turn() -> None:
    """Each SETTINGS frame changes the windows of all streams."""

    async def work() -> None:
        client = Client(is_ready=True)
        client.inferences.max_requests = 1000
        await client.open()
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

        client.connection._h2.receive_data = counted  # type: ignore[method-assign, assignment]
        frames = [SettingsFrame(0, settings={4: 1000 + number % 2}) for number in range(200)]
        await client.feed_frames(frames)
        assert sum(reads) == 15 * 200
        assert max(reads) <= 15 * 16
        assert not client.is_closed

    run(work)


def test_a_read_may_end_anywhere_in_a_frame() -> None:
    async def work() -> None:
        client = Client(is_ready=False)
        client.h2.initiate_connection()
        stream_id = client.begin("ServerReady")
        client.h2.send_data(stream_id, EMPTY, end_stream=True)
        for byte in client.h2.data_to_send():
            await client.feed(bytes([byte]))
        assert client.trailers(stream_id)["grpc-status"] == "0"

    run(work)


def test_settings_that_nobody_knows_are_not_kept() -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        for first, is_closed in ((1000, False), (1000, False), (2000, True)):
            settings = b"".join(struct.pack(">HI", number, 1) for number in range(first, first + 50))
            await client.feed(struct.pack(">HBBBI", *divmod(len(settings), 256), 4, 0, 0) + settings)
            assert client.is_closed == is_closed

    run(work)


def test_a_large_table_of_headers_is_not_used() -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        client.h2.decoder.max_allowed_table_size = 1 << 30
        await client.feed_frames([SettingsFrame(0, settings={1: 1 << 30})])
        for number in range(50):
            trailers = await client.call(f"/{'x' * 150}{number}", EMPTY)
            assert trailers["grpc-message"].endswith(str(number))
        assert client.connection._h2.encoder.header_table._current_size <= 4096
        assert not client.is_closed

    run(work)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_client_that_leaves_during_an_upload_leaves_nothing(method: str, dies: bool) -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        stream_id = client.begin(method)
        client.h2.send_data(stream_id, struct.pack(">BI", 0, MAX_BODY_BYTES) + bytes(10_000))
        await client.flush()
        assert (len(client.server.open), client.budget.held_bytes) == (1, 10_005)
        if dies:
            client.transport.lose()
        else:
            client.h2.reset_stream(stream_id, 8)
            await client.flush()
        assert (len(client.server.open), client.budget.held_bytes) == (0, 0)
        assert [*client.server.connections] == ([] if dies else [client.connection])

    run(work)


def test_rapid_resets_close_the_connection() -> None:
    async def work() -> None:
        client = Client(is_ready=True)
        await client.open()
        client.connection._since_s = math.inf  # All happens within one second.
        for _ in range(1100):
            stream_id = client.begin("ModelStreamInfer")
            client.h2.reset_stream(stream_id)
        client.transport.feed(client.h2.data_to_send())
        await client.settle()
        assert client.transport.is_closing()
        assert len(client.server.open) == 0

    run(work)


def test_answers_to_streams_that_are_reset_in_the_same_read_harm_nobody() -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        for method in ("ServerReady", "Nothing"):
            stream_id = client.begin(method)
            client.h2.send_data(stream_id, EMPTY, end_stream=True)
            client.h2.reset_stream(stream_id)
            await client.flush()
        assert (await client.call("ServerReady", EMPTY))["grpc-status"] == "0"
        assert len(client.server.open) == 0

    run(work)


def test_ten_thousand_streams_are_bounded_over_all_connections() -> None:
    async def work() -> None:
        client = Client(is_ready=True)
        await client.open()
        for _ in range(300):
            client.begin("ModelStreamInfer")
        await client.flush()
        assert len(client.server.open) == 200  # Twice the requests that may run.
        refused = [each for each in client.events if isinstance(each, ResponseReceived)]
        assert len(refused) == 100
        assert dict(refused[0].headers)["grpc-status"] == str(RESOURCE_EXHAUSTED)
        client.inferences.max_requests = 100_000
        client.h2.remote_settings.max_concurrent_streams = 5000  # It does not keep to the server's.
        client.h2.remote_settings.acknowledge()
        for _ in range(1000):
            client.begin("ModelStreamInfer")
        await client.flush()
        assert client.transport.is_closing()
        assert len(client.server.open) == 0

    run(work)


def test_a_bomb_of_headers_closes_the_connection() -> None:
    async def work() -> None:
        client = Client()
        await client.open()
        entry = b"\x40\x01a\x7f" + bytes([0x80 | (3900 - 127) % 128, (3900 - 127) // 128]) + b"b" * 3900
        await client.feed_frames([HeadersFrame(1, data=entry + b"\xbe" * 12_000, flags=["END_HEADERS"])])
        assert client.transport.is_closing()

    run(work)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\0" * 100, b"\0" * 50_000])
def test_what_is_no_http_2_closes_the_connection(data: bytes) -> None:
    async def work() -> None:
        client = Client()
        client.transport.feed(data)
        assert client.transport.is_closing()

    run(work)


@given(st.binary(max_size=400))
def test_any_bytes_after_the_preface_raise_nothing(data: bytes) -> None:
    async def work() -> None:
        client = Client()
        client.h2.initiate_connection()
        client.transport.feed(client.h2.data_to_send() + data)

    run(work)


frame_bytes = st.builds(
    lambda kind, flags, stream_id, body: (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream_id) + body
    ),
    st.integers(0, 10),
    st.integers(0, 255),
    st.integers(0, 5),
    st.binary(max_size=30),
)


@given(st.lists(frame_bytes, max_size=8))
def test_any_frames_raise_nothing(frames: list[bytes]) -> None:
    async def work() -> None:
        client = Client()
        client.h2.initiate_connection()
        client.begin("ServerReady")
        client.transport.feed(client.h2.data_to_send() + b"".join(frames))
        client.transport.close()
        assert len(client.server.open) == 0

    run(work)


def test_unread_answers_of_a_client_whose_windows_stay_closed_are_bounded() -> None:
    async def work() -> None:
        client = Client()
        await client.open(window_bytes=0)
        stream_ids = []
        for _ in range(2000):
            if client.is_closed:
                break
            stream_ids.append(client.begin("ServerReady"))
            client.h2.send_data(stream_ids[-1], EMPTY, end_stream=True)
            await client.flush()
        assert client.transport.is_closing()
        assert len(client.server.open) == 0

    run(work)


def test_answers_wait_for_their_windows_and_then_arrive() -> None:
    async def work() -> None:
        client = Client()
        await client.open(window_bytes=0)
        stream_ids = [client.begin("/grpc.health.v1.Health/Check") for _ in range(20)]
        for each in stream_ids:
            client.h2.send_data(each, EMPTY, end_stream=True)
        await client.flush()
        assert client.connection.unsent_bytes > 0
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        await client.flush()
        assert all(client.trailers(each)["grpc-status"] == "0" for each in stream_ids)
        assert client.connection.unsent_bytes == 0

    run(work)


@pytest.mark.parametrize("frame", [SettingsFrame(0), WindowUpdateFrame(0, window_increment=1)])
def test_a_read_tries_what_waits_for_windows_once(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        client = Client()
        await client.open(window_bytes=0)
        for _ in range(50):
            client.h2.send_data(client.begin("/grpc.health.v1.Health/Check"), EMPTY, end_stream=True)
        await client.flush()
        tried: list[int] = []

        def send_what_fits(stream_id: int, part: object) -> bool:
            tried.append(stream_id)
            return False

        monkeypatch.setattr(client.connection, "_send_what_fits", send_what_fits)
        client.connection.receive(frame.serialize() * 500)
        assert len(tried) == 50

    run(work)


def test_an_unexpected_error_ends_its_call_only() -> None:
    async def work() -> None:
        client = Client(is_ready=True)
        await client.open()
        client.begin("ModelStreamInfer")
        # The stand-in has no Triton: an AttributeError.
        assert (await client.call("ServerReady", EMPTY))["grpc-status"] == str(INTERNAL)
        assert not client.is_closed
        assert len(client.server.open) == 1

    run(work)


def test_connections_with_useless_frames_are_read_in_turn() -> None:
    async def work() -> None:
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

    run(work)


# Calls of Triton


async def _inference(*more: tuple[str, str]) -> tuple[Client, StandInTriton, int]:
    triton, inferences = stand_in()
    client = Client(inferences=inferences)
    await client.open()
    stream_id = client.begin("ModelStreamInfer", *more)
    request = pb.ModelInferRequest(model_name="ensemble").SerializeToString()
    client.h2.send_data(stream_id, prefixed(request))
    await client.flush()
    return client, triton, stream_id


@pytest.mark.parametrize(
    ("error", "status"),
    [("E1103 InvalidTensor: x", INVALID_ARGUMENT), ("in the model", INTERNAL), ("", None)],
)
def test_a_stream_ends_at_its_first_error_if_its_client_asks_so(error: str, status: int | None) -> None:
    async def work() -> None:
        client, triton, stream_id = await _inference(("triton_grpc_error", "true"))
        (call,) = triton.calls
        assert call.metadata == []  # Triton 2.51 may crash at an error of such a call.
        response = pb.ModelStreamInferResponse(error_message=error)
        response.infer_response.parameters["triton_final_response"].bool_param = not error
        call.on_message(response.SerializeToString())
        await client.flush()
        trailers = client.trailers(stream_id)
        assert trailers.get("grpc-status") == (None if status is None else str(status))
        assert trailers.get("grpc-message", "") == error
        assert call.is_left == bool(error)

    asyncio.run(work())


@pytest.mark.parametrize("timeout", ["1m", "1000u", "0S", "99999999n"])
def test_a_deadline_ends_a_call_before_triton_knows_of_it(timeout: str) -> None:
    async def work() -> None:
        client, triton, stream_id = await _inference(("grpc-timeout", timeout))
        assert triton.calls[0].metadata == []
        while "grpc-status" not in client.trailers(stream_id):
            await asyncio.sleep(0.01)
            await client.flush()
        assert client.trailers(stream_id)["grpc-status"] == "4"
        assert triton.calls[0].is_left

    asyncio.run(work())


@pytest.mark.parametrize("timeout", ["99999999H", "1", "-1S", "1s", "123456789S", ""])
def test_long_deadlines_and_malformed_ones_end_no_call(timeout: str) -> None:
    async def work() -> None:
        client, _, stream_id = await _inference(("grpc-timeout", timeout))
        assert "grpc-status" not in client.trailers(stream_id)
        assert client.inferences.running == 1

    asyncio.run(work())


def test_each_request_of_a_stream_has_a_call_of_its_own() -> None:
    """Triton 2.51 aborts at streams whose requests are for different kinds of models."""

    async def work() -> None:
        client, triton, stream_id = await _inference()
        for model in ("tensorrt_llm", "unknown"):
            request = pb.ModelInferRequest(model_name=model).SerializeToString()
            client.h2.send_data(stream_id, prefixed(request), end_stream=model == "unknown")
        await client.flush()
        assert [len(call.sent) for call in triton.calls] == [1, 1, 1]
        for call in list(triton.calls):
            assert "grpc-status" not in client.trailers(stream_id)
            call.on_message(_final())
            triton.finish(call)
            await client.flush()
        assert client.trailers(stream_id)["grpc-status"] == "0"
        assert (client.inferences.running, client.budget.held_bytes) == (0, 0)

    asyncio.run(work())


def test_a_stream_without_a_request_ends_well() -> None:
    async def work() -> None:
        client = Client(inferences=stand_in()[1])
        await client.open()
        assert await client.call("ModelStreamInfer", b"") == {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "0",
        }

    asyncio.run(work())


def _final() -> bytes:
    response = pb.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())
