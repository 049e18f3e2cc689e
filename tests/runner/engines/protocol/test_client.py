"""The engine server's client for an event loop, against a real engine server and one that misbehaves."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed
from errors.requests import ClientStalled
from errors.triton import TritonTimeout
from errors.wire import WireError
from runner.engines.protocol import connection as connection_module
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    FromClient,
    Output,
    Ready,
    Submit,
    ToClient,
    Tokens,
)
from runner.engines.protocol.wire import decode_frames, frame
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening, make_paced_directory
from tests.runner.engines.server.supervised import LONG, WAIT_S, exhaust

pytestmark = pytest.mark.servers

SUBMIT = Submit(0, [5, 6], 20)
READY = Ready("paced", 1000, 100_000, 8)
TIMEOUT_S = 0.5
"""How long clients of the stand-in wait in silence."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServerUnderTest]:
    folder = tmp_path_factory.mktemp("server")
    directory = make_paced_directory(folder / "model", 1000)
    server = EngineServerUnderTest("paced", directory, {}, folder)
    yield server
    server.stop()


@asynccontextmanager
async def connected(path: Path, timeout_s: float = WAIT_S) -> AsyncIterator[EngineClient]:
    async with EngineClient(path, timeout_s, "paced") as client:
        await asyncio.wait_for(is_ready(client, expected=True), WAIT_S)
        yield client


async def outputs_of(client: EngineClient, submit: Submit) -> list[Output]:
    return [output async for output in client.generate(submit)]


async def tokens_of(client: EngineClient, submit: Submit) -> list[int]:
    return [token for output in await outputs_of(client, submit) for token in output.tokens]


async def error_of(client: EngineClient, submit: Submit) -> tuple[CodedError, list[int]]:
    tokens: list[int] = []
    try:
        async for output in client.generate(submit):
            tokens += output.tokens
    except CodedError as error:
        return error, tokens
    raise AssertionError("it ended well")


async def is_ready(client: EngineClient, *, expected: bool) -> None:
    while client.is_ready != expected:  # noqa: ASYNC110 - the client has no event for it
        await asyncio.sleep(0.005)


async def test_requests_share_a_connection_and_do_not_mix(server: EngineServerUnderTest) -> None:
    submits = [Submit(0, [number, 0], 40 + number, returns_times=True) for number in range(1, 50)]
    async with connected(server.path) as client:
        answers = await asyncio.gather(*(outputs_of(client, each) for each in submits))
    for submit, (*outputs, last) in zip(submits, answers, strict=True):
        tokens = [token for output in (*outputs, last) for token in output.tokens]
        assert tokens == (submit.input_ids * 50)[: submit.max_tokens]
        assert last.finish_reason == "length"
        assert last.times_s is not None
        assert not [each for each in outputs if each.finish_reason or each.times_s]


async def test_a_busy_process_gets_every_token_in_fewer_outputs(server: EngineServerUnderTest) -> None:
    # Each chunk seems to take a second.
    coalescing = Coalescing(8, itertools.count(0, 1000).__next__)
    async with EngineClient(server.path, WAIT_S, "paced", coalescing) as client:
        await asyncio.wait_for(is_ready(client, expected=True), WAIT_S)
        outputs = [output.tokens async for output in client.generate(Submit(0, [5, 6], 600))]
    assert [token for tokens in outputs for token in tokens] == [5, 6] * 300
    assert len(outputs) < 300


async def test_leaving_the_iteration_cancels_the_request(server: EngineServerUnderTest) -> None:
    with Listening(server) as listening:
        await asyncio.to_thread(listening.wait_for, listening.statistics)
        async with connected(server.path) as client:
            outputs = client.generate(LONG)
            await anext(outputs)
            await asyncio.to_thread(listening.wait_for, lambda: listening.statistics()[-1].active == 1)
            await outputs.aclose()
            await asyncio.to_thread(listening.wait_for, lambda: listening.statistics()[-1].active == 0)
            assert await tokens_of(client, SUBMIT) == [5, 6] * 10


async def test_a_request_before_the_engine_is_ready_is_e2107_at_once(tmp_path: Path) -> None:
    async with EngineClient(tmp_path / "nowhere", WAIT_S, "paced") as client:
        error, _ = await error_of(client, SUBMIT)
        assert isinstance(error, EngineCrashed)
        assert error.facts["was_ready"] is False
        assert not await client.is_answering()


async def test_a_lost_connection_is_e2107_and_made_again(server: EngineServerUnderTest) -> None:
    async with connected(server.path) as client:
        outputs = client.generate(LONG)
        await anext(outputs)
        await asyncio.to_thread(server.kill)
        with pytest.raises(EngineCrashed) as raised:
            await exhaust(outputs)
        assert raised.value.facts.get("was_ready", True)
        await asyncio.wait_for(is_ready(client, expected=False), WAIT_S)
        assert client.silence_s == 0
        server.start()
        await asyncio.wait_for(is_ready(client, expected=True), WAIT_S)
        assert await tokens_of(client, SUBMIT) == [5, 6] * 10
        assert client.silence_s < WAIT_S


async def test_ending_all_ends_running_requests_with_e2107_and_takes_no_new_ones(
    server: EngineServerUnderTest,
) -> None:
    async with connected(server.path) as client:
        running = [asyncio.ensure_future(error_of(client, LONG)) for _ in range(3)]
        await asyncio.sleep(0.05)
        client.end_all()
        for error, _ in await asyncio.gather(*running):
            assert isinstance(error, EngineCrashed)
        assert isinstance((await error_of(client, SUBMIT))[0], EngineCrashed)


class Connection:
    """The stand-in's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[FromClient]] = msgspec.msgpack.Decoder(list[FromClient])

    def send(self, *messages: ToClient) -> None:
        self.writer.write(frame(self._encoder, messages))

    async def frames(self) -> AsyncIterator[list[FromClient]]:
        buffer = bytearray()
        while data := await self._reader.read(1 << 16):
            buffer += data
            for messages in decode_frames(buffer, self._decoder):
                yield messages

    async def messages(self) -> AsyncIterator[FromClient]:
        async for each in self.frames():
            for message in each:
                yield message


Behaviour = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def stand_in(path: Path, behave: Behaviour) -> AsyncIterator[EngineClient]:
    """Provide a client of a server that says that it is ready and then behaves so."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        connection.send(READY)
        with suppress(ConnectionError):
            await behave(connection)
        writer.close()

    server = await asyncio.start_unix_server(handle, str(path / "socket"))
    async with server, connected(path / "socket", TIMEOUT_S) as client:
        yield client


async def test_silence_is_e2101_and_cancels(tmp_path: Path) -> None:
    received: list[FromClient] = []
    cancelled = asyncio.Event()

    async def be_silent(connection: Connection) -> None:
        async for message in connection.messages():
            received.append(message)
            if isinstance(message, Submit):
                connection.send(Tokens([(message.request_id, [5])]))
            else:
                cancelled.set()

    async with stand_in(tmp_path, be_silent) as client:
        error, tokens = await error_of(client, SUBMIT)
        assert isinstance(error, TritonTimeout)
        assert "The engine server timed out after 0.5s: it sent no token." in str(error)
        assert tokens == [5]
        await asyncio.wait_for(cancelled.wait(), WAIT_S)
    submit, cancel = received
    assert isinstance(submit, Submit)
    assert cancel == Cancel(submit.request_id)


async def test_a_failure_comes_after_the_tokens_before_it(tmp_path: Path) -> None:
    failed = EngineFailed(engine_kind="paced", reason="a test")

    async def fail(connection: Connection) -> None:
        async for message in connection.messages():
            number = message.request_id
            connection.send(
                Tokens([(number, [5])]), Failed(number, WireError.of(failed)), Finished(4711, "end")
            )

    async with stand_in(tmp_path, fail) as client:
        error, tokens = await error_of(client, SUBMIT)
        assert (str(error), error.facts, tokens) == (str(failed), failed.facts, [5])


@pytest.mark.parametrize("data", [b"\3\0\0\0abc", b"\xff\xff\xff\xff"], ids=["garbage", "huge"])
async def test_a_malformed_frame_loses_the_connection_and_what_came_before_arrives(
    tmp_path: Path, data: bytes
) -> None:
    connections = []

    async def send_garbage_once(connection: Connection) -> None:
        connections.append(connection)
        async for message in connection.messages():
            connection.send(Tokens([(message.request_id, [5])]))
            if len(connections) == 1:
                connection.writer.write(data)
            else:
                connection.send(Finished(message.request_id, "end"))

    async with stand_in(tmp_path, send_garbage_once) as client:
        error, tokens = await error_of(client, SUBMIT)
        assert isinstance(error, EngineCrashed)
        assert "malformed message" in str(error)
        assert tokens == [5]
        await asyncio.wait_for(is_ready(client, expected=True), WAIT_S)
        assert await tokens_of(client, SUBMIT) == [5]
    assert len(connections) == 2


async def test_a_reader_that_stalls_is_e1009_and_its_request_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_STALL_TIMEOUT_S", 0.3)
    cancelled = asyncio.Event()

    async def pour(connection: Connection) -> None:
        messages = connection.messages()
        submit = await anext(messages)
        reading = asyncio.ensure_future(anext(messages))
        while not reading.done():
            connection.send(Tokens([(submit.request_id, [5])]))
            await asyncio.sleep(0.01)
        assert reading.result() == Cancel(submit.request_id)
        connection.send(Finished(submit.request_id, "cancelled"))  # As the engine server does.
        cancelled.set()

    async with stand_in(tmp_path, pour) as client:
        outputs = client.generate(SUBMIT)
        await anext(outputs)
        await asyncio.wait_for(cancelled.wait(), WAIT_S)
        await anext(outputs)  # What arrived before is not lost.
        with pytest.raises(ClientStalled, match="E1009"):
            await anext(outputs)


async def test_requests_of_one_iteration_of_the_loop_take_two_frames(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def count(connection: Connection) -> None:
        async for messages in connection.frames():
            sizes.append(len(messages))
            connection.send(*(Finished(message.request_id, "end") for message in messages))

    async with stand_in(tmp_path, count) as client:
        await asyncio.gather(*(tokens_of(client, SUBMIT) for _ in range(100)))
    assert sizes == [1, 99]
