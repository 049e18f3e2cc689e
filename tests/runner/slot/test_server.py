"""The slot's own socket, and our client of it: whole answers or a coded error, never a short one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import ClientStalled, PromptTooLong
from errors.triton import TritonTimeout, TritonUnavailable
from runner.engines.protocol.events import Event
from runner.engines.protocol.wire import FrameReader, frame
from runner.slot import client as slot_client
from runner.slot.call import Call
from runner.slot.client import SlotClient
from runner.slot.protocol import StartRequest
from runner.slot.server import SlotSocket
from runner.slot.tensors import Tensors
from tests.runner.servers import wait_until

TIMEOUT_S = 60.0
PLACE = (0, 0)
INPUTS: dict[str, Any] = {"input_ids": [1, 2, 3], "input_lengths": 3, "request_output_len": 2}


class Slot:
    """What is behind the socket: keeps the calls, and answers when it is told to."""

    def __init__(self, path: Path) -> None:
        self.tensors: list[Tensors] = []
        self.calls: list[Call] = []
        self.left: list[Call] = []
        self.on_call: Callable[[Call], None] = lambda call: None
        self.socket = SlotSocket(path, self._start, self.left.append)

    def _start(self, read: Callable[[], Tensors], call: Call) -> None:
        self.tensors.append(read())
        self.calls.append(call)
        self.on_call(call)


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    slot = Slot(tmp_path / "slot")
    yield slot
    slot.socket.close()


async def collect(client: SlotClient, **more: Any) -> list[Event]:
    return [event async for events in client.generate({**INPUTS, **more}) for event in events]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slot"


def answer(client_of: Path, *, timeout_s: float = TIMEOUT_S, **more: Any) -> list[Event]:
    async def ask() -> list[Event]:
        async with SlotClient(client_of, timeout_s) as client:
            return await collect(client, **more)

    return asyncio.run(asyncio.wait_for(ask(), 300))


def test_tensors_arrive_with_their_batch_dimension_and_answers_in_order(slot: Slot, path: Path) -> None:
    def reply(call: Call) -> None:
        call.respond(PLACE, [7], None)
        call.respond(PLACE, [8, 9], None)
        call.respond(PLACE, [], "length", further={"arrival_time_ns": [[5]]})

    slot.on_call = reply
    events = answer(path, temperature=0.5, random_seed=(1 << 64) - 1, streaming=True, lora_name="é")
    assert [event.tokens for event in events] == [[7], [8, 9], []]
    assert [event.finish_reason for event in events] == [None, None, "length"]
    assert events[-1].arrival_time_ns == 5
    (tensors,) = slot.tensors
    assert tensors["input_ids"].tolist() == [[1, 2, 3]]
    assert tensors["temperature"].tolist() == [[0.5]]
    assert tensors["random_seed"].tolist() == [[(1 << 64) - 1]]
    assert tensors["streaming"].tolist() == [[True]]
    assert tensors["lora_name"][0][0].decode() == "é"


def test_hundreds_of_streams_share_a_connection_and_each_gets_its_own_tokens(slot: Slot, path: Path) -> None:
    streams, rounds = 300, 40

    def feed() -> None:
        assert wait_until(lambda: len(slot.calls) == streams)
        for number in range(rounds):
            for call, tensors in zip(slot.calls, slot.tensors, strict=True):
                call.respond(PLACE, [int(tensors["request_output_len"][0][0]), number], None)
            slot.socket.flush()
        for call in slot.calls:
            call.respond(PLACE, [], "length")
        slot.socket.flush()

    async def ask() -> list[list[Event]]:
        async with SlotClient(path, TIMEOUT_S) as client:
            return await asyncio.gather(
                *(collect(client, request_output_len=name) for name in range(1, streams + 1))
            )

    thread = threading.Thread(target=feed)
    thread.start()
    for name, events in enumerate(asyncio.run(ask()), 1):
        tokens = [token for event in events for token in event.tokens]
        assert tokens == [token for number in range(rounds) for token in (name, number)]
    thread.join()


@pytest.mark.parametrize("error", [PromptTooLong(prompt_tokens=9, max_input_tokens=3)])
def test_a_refusal_is_raised_as_it_was_meant(slot: Slot, path: Path, error: CodedError) -> None:
    slot.on_call = lambda call: call.refuse(error)
    with pytest.raises(PromptTooLong) as raised:
        answer(path)
    assert (str(raised.value), raised.value.facts) == (str(error), error.facts)


def test_an_error_comes_after_the_tokens_before_it(slot: Slot, path: Path) -> None:
    def reply(call: Call) -> None:
        call.respond(PLACE, [7], None)
        call.respond(PLACE, [], EngineCrashed(engine_kind="paced", reason="it broke"))

    slot.on_call = reply

    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            batches = client.generate(INPUTS)
            assert [event.tokens for event in await anext(batches)] == [[7]]
            with pytest.raises(EngineCrashed, match="it broke"):
                await anext(batches)

    asyncio.run(ask())


def test_a_stream_whose_end_never_comes_is_an_error(slot: Slot, path: Path) -> None:
    slot.on_call = lambda call: call.respond(PLACE, [7], None)
    with pytest.raises(TritonTimeout):
        answer(path, timeout_s=0.3)
    assert wait_until(lambda: slot.left == slot.calls), "the engine goes on for nobody"


def test_a_reader_that_takes_nothing_for_too_long_is_cut_and_frees_the_engine_before_it_is_back(
    slot: Slot, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_client, "_STALL_TIMEOUT_S", 0.2)

    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            batches = client.generate(INPUTS)
            slot.on_call = lambda call: call.respond(PLACE, [7], None)
            assert [event.tokens for event in await anext(batches)] == [[7]]
            (call,) = slot.calls
            for _ in range(2):
                call.respond(PLACE, [8, 9], None)
                slot.socket.flush()
            # Meanwhile others are served.
            assert await asyncio.to_thread(wait_until, lambda: slot.left == [call])
            slot.on_call = lambda call: call.respond(PLACE, [7], "length")
            assert [event.tokens for event in await collect(client)] == [[7]]
            assert [event.tokens for event in await anext(batches)] == [[8, 9], [8, 9]]
            with pytest.raises(ClientStalled, match="16 bytes"):
                await anext(batches)

    asyncio.run(ask())


def test_a_reader_that_is_slow_but_reads_is_not_cut(
    slot: Slot, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_client, "_STALL_TIMEOUT_S", 0.5)

    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            batches = client.generate(INPUTS)
            slot.on_call = lambda call: call.respond(PLACE, [0], None)
            tokens = [token for event in await anext(batches) for token in event.tokens]
            (call,) = slot.calls
            for number in range(1, 8):
                call.respond(PLACE, [number], "length" if number == 7 else None)
                slot.socket.flush()
                await asyncio.sleep(0.1)  # All in all longer than the limit.
                tokens += [token for event in await anext(batches) for token in event.tokens]
            assert tokens == list(range(8))

    asyncio.run(ask())


def test_a_slot_that_goes_away_ends_its_streams_with_an_error_and_a_new_one_is_found(
    slot: Slot, path: Path
) -> None:
    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            waiting = asyncio.create_task(collect(client))
            await asyncio.to_thread(wait_until, lambda: slot.calls)
            slot.socket.close()
            with pytest.raises(TritonUnavailable):
                await waiting
            with pytest.raises(TritonUnavailable):
                await collect(client)
            again = Slot(path)
            again.on_call = lambda call: call.respond(PLACE, [7], "length")
            assert [event.tokens for event in await collect(client)] == [[7]]
            again.socket.close()

    asyncio.run(ask())


def test_who_leaves_a_stream_tells_the_slot(slot: Slot, path: Path) -> None:
    slot.on_call = lambda call: call.respond(PLACE, [7], None)

    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            async with aclosing(client.generate(INPUTS)) as batches:
                async for _ in batches:
                    break
            assert await asyncio.to_thread(wait_until, lambda: slot.left)

    asyncio.run(ask())
    assert slot.left == slot.calls


def test_a_client_that_is_gone_leaves_all_its_streams(slot: Slot, path: Path) -> None:
    async def ask() -> None:
        async with SlotClient(path, TIMEOUT_S) as client:
            tasks = [asyncio.create_task(collect(client)) for _ in range(5)]
            await asyncio.to_thread(wait_until, lambda: len(slot.calls) == 5)
            client_task = asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, TritonUnavailable) for each in await client_task)

    asyncio.run(ask())
    assert wait_until(lambda: len(slot.left) == 5)


def test_one_who_does_not_read_holds_nobody_up_and_loses_nothing(slot: Slot, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(str(path))
        lazy.sendall(frame(msgpack.Encoder(), StartRequest(1, INPUTS)))
        assert wait_until(lambda: slot.calls)
        (its_call,) = slot.calls
        for number in range(2000):
            its_call.respond(PLACE, list(range(number, number + 200)), None)
            slot.socket.flush()  # Returns at once, however full the connection is.
        slot.on_call = lambda call: call.respond(PLACE, [7], "length")
        assert [event.tokens for event in answer(path)] == [[7]]
        its_call.respond(PLACE, [], "length")
        slot.socket.flush()
        decoder = msgpack.Decoder(list[tuple[int, Event]])
        received: list[Event] = []
        for frames in FrameReader(lazy, decoder).batches():
            received += [event for answers in frames for _, event in answers]
            if received[-1].finish_reason is not None:
                break
        assert [event.tokens for event in received[:-1]] == [list(range(n, n + 200)) for n in range(2000)]
