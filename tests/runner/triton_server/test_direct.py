"""Responses of the slot past Triton: in order, before the last one, and never lost in silence."""

import asyncio
import errno
import socket
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from runner.slot.front_link import FrontLink
from runner.triton_server.direct import DirectResponses
from runner.triton_server.front.answers import generate_body


class Call:
    """What a call of the front has got."""

    def __init__(self) -> None:
        self.responses: list[pb.ModelStreamInferResponse] = []
        self.is_lost = False
        self.fails = False

    def receive(self, message: bytes) -> None:
        if self.fails:
            raise RuntimeError("the client is gone")
        self.responses.append(pb.ModelStreamInferResponse.FromString(message))

    def responses_lost(self) -> None:
        self.is_lost = True

    @property
    def tokens(self) -> list[int]:
        return [
            int(np.frombuffer(each.infer_response.raw_output_contents[0], np.int32)[0])
            for each in self.responses
        ]


def send(link: FrontLink, call: str, token: int) -> bool:
    arrays = {"output_ids": np.array([[[token]]], np.int32), "sequence_length": np.array([[1]], np.int32)}
    return link.send(call, "the id", arrays)


async def test_a_response_is_as_triton_writes_it(tmp_path: Path) -> None:
    with closing(DirectResponses(tmp_path / "front")) as direct:
        call = direct.calls["f:1"] = Call()
        link = FrontLink(tmp_path / "front", "1")
        assert send(link, "f:1", 7)
        assert send(link, "f:2", 8), "nobody waits for it"
        link.flush()
        direct.drain()
        (response,) = call.responses
        assert not response.error_message
        assert not response.infer_response.parameters["triton_final_response"].bool_param
        assert generate_body(response.infer_response) == (
            b'{"id":"the id","model_name":"tensorrt_llm","model_version":"1",'
            b'"output_ids":7,"sequence_length":1}'
        )


async def test_what_was_flushed_is_there_at_the_next_drain_whole_and_in_order(tmp_path: Path) -> None:
    with closing(DirectResponses(tmp_path / "front")) as direct:
        calls = {f"f:{number}": Call() for number in range(50)}
        direct.calls.update(calls)
        link = FrontLink(tmp_path / "front", "1")
        for token in range(20):
            for key in calls:
                assert send(link, key, token)
            link.flush()
            if token % 7 == 0:
                direct.drain()
                assert all(call.tokens == list(range(token + 1)) for call in calls.values())
        direct.drain()
        assert all(call.tokens == list(range(20)) for call in calls.values())


async def test_the_loop_passes_on_what_arrives_and_one_bad_call_harms_no_other(tmp_path: Path) -> None:
    with closing(DirectResponses(tmp_path / "front")) as direct:
        bad, good = Call(), Call()
        direct.calls.update({"f:1": bad, "f:2": good})
        bad.fails = True
        link = FrontLink(tmp_path / "front", "1")
        for token in range(3):
            send(link, "f:1", token)
            send(link, "f:2", token)
            await asyncio.to_thread(link.flush)
        while good.tokens != [0, 1, 2]:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)
        assert bad.is_lost
        assert not good.is_lost


async def test_of_a_slot_that_connected_after_another_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    with (
        closing(DirectResponses(tmp_path / "front")) as direct,
        socket.socket(socket.AF_UNIX) as before,
    ):
        call = direct.calls["f:1"] = Call()
        before.connect(str(tmp_path / "front"))
        link = FrontLink(tmp_path / "front", "1")
        assert send(link, "f:1", 5)
        link.flush()
        direct.drain()
        assert call.is_lost, "its text may not be whole"


async def test_a_slot_that_ends_or_sends_nonsense_ends_the_calls_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    with closing(DirectResponses(tmp_path / "front")) as direct:
        for nonsense in (b"", b"\x03\x00\x00\x00abc", b"\xff" * 8):
            link = FrontLink(tmp_path / "front", "1")
            send(link, "f:0", 4)  # It takes the place of the one before.
            link.flush()
            direct.drain()
            call = direct.calls["f:1"] = Call()
            send(link, "f:1", 5)
            link.flush()
            direct.drain()
            assert call.tokens == [5]
            assert not call.is_lost
            slot = socket.socket(socket.AF_UNIX)
            slot.connect(str(tmp_path / "front"))
            slot.sendall(nonsense)
            slot.close()
            while not call.is_lost:
                direct.drain()
                await asyncio.sleep(0.01)


async def test_without_a_descriptor_there_is_no_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(DirectResponses(tmp_path / "front")):
        link = FrontLink(tmp_path / "front", "1")
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
            assert not send(link, "f:1", 1)
        assert send(link, "f:1", 1)


async def test_without_a_front_the_slot_uses_triton_and_a_new_front_gets_all_from_the_first_on(
    tmp_path: Path,
) -> None:
    link = FrontLink(tmp_path / "front", "1")
    assert not send(link, "f:1", 1)
    for _ in range(2):
        with closing(DirectResponses(tmp_path / "front")) as direct:
            call = direct.calls["f:1"] = Call()
            for token in range(3):
                assert send(link, "f:1", token)
                link.flush()
            direct.drain()
            assert call.tokens == [0, 1, 2]
    assert send(link, "f:1", 3), "the link has not noticed yet that its front has ended"
    link.flush()
    assert not send(link, "f:1", 4)
