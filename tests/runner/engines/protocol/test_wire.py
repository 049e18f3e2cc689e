"""Frames over a socket: whatever way the bytes arrive, the messages are those that were sent, in order."""

import socket
import struct
import threading
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors.requests import InvalidTensor
from errors.wire import WireError
from runner.engines.protocol import wire
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    FromClient,
    Ready,
    Sampling,
    Statistics,
    Submit,
    ToClient,
    Tokens,
)
from runner.engines.protocol.wire import (
    FrameQueue,
    FrameReader,
    FrameSender,
    FrameTooLong,
    decode_frames,
    frame,
)

IDS = st.integers(0, 2**63 - 1)
FACTS = st.dictionaries(st.text(), st.none() | st.booleans() | IDS | st.floats(allow_nan=False) | st.text())
ERRORS = st.builds(WireError, st.text(), st.text(), st.text(), FACTS)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
SUBMITS = st.builds(
    Submit,
    request_id=IDS,
    input_ids=TOKENS,
    max_tokens=st.integers(1, 2**31 - 1),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 5),
        top_k=st.integers(0, 100),
        seed=st.none() | st.integers(0, 2**64 - 1),
    ),
    end_id=st.none() | IDS,
    stop_words=st.lists(TOKENS, max_size=3),
)
FROM_CLIENT: st.SearchStrategy[list[FromClient]] = st.lists(
    st.one_of(SUBMITS, st.builds(Cancel, request_id=IDS))
)
TO_CLIENT: st.SearchStrategy[list[ToClient]] = st.lists(
    st.one_of(
        st.builds(Ready, st.text(), IDS, IDS, IDS),
        st.builds(Tokens, st.lists(st.tuples(IDS, TOKENS), max_size=5)),
        st.builds(Finished, IDS, st.sampled_from(["end", "stop", "length", "cancelled"])),
        st.builds(Failed, IDS, ERRORS),
        st.builds(Statistics, IDS, IDS, st.none() | st.floats(0, 1)),
    )
)


def encode(messages: list[FromClient] | list[ToClient]) -> bytes:
    encoder = msgspec.msgpack.Encoder()
    return b"".join(frame(encoder, [message]) for message in messages)


@settings(max_examples=60)
@given(
    st.tuples(FROM_CLIENT, st.just(list[FromClient])) | st.tuples(TO_CLIENT, st.just(list[ToClient])),
    st.data(),
)
def test_messages_arrive_as_they_were_sent_though_frames_are_split_at_any_byte(
    sent: tuple[list[Any], type[list[Any]]], data: st.DataObject
) -> None:
    """The reader sees each piece alone, because the next is sent when it asks for it."""
    messages, kind = sent
    stream = encode(messages)
    ours, theirs = socket.socketpair()
    with theirs, ours:
        reader = FrameReader(theirs, kind)
        theirs.setblocking(False)  # No data yet ends the iteration; the next one goes on.
        received: list[Any] = []
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            ours.sendall(stream[:size])
            stream = stream[size:]
            received += [message for batch in reader.batches() for message in batch]
        assert received == messages


def test_what_has_arrived_together_is_one_batch() -> None:
    ours, theirs = socket.socketpair()
    messages: list[FromClient] = [Cancel(number) for number in range(100)]
    with theirs:
        ours.sendall(encode(messages))
        ours.close()
        assert list(FrameReader(theirs, list[FromClient]).batches()) == [messages]


@pytest.mark.parametrize(
    ("malformed", "told"),
    [
        ({"type": "Cancel", "request_id": 2}, "Expected `array`, got `object`"),
        ([{"type": "Nonsense"}], "Invalid value 'Nonsense'"),
        ([{"request_id": 2}], "missing required field `type`"),
    ],
)
def test_a_malformed_frame_is_an_error_after_those_before_it(malformed: Any, told: str) -> None:
    good = encode([Cancel(1)])
    frames = decode_frames(
        bytearray(good + frame(msgspec.msgpack.Encoder(), malformed)),
        msgspec.msgpack.Decoder(list[FromClient]),
    )
    assert next(frames) == [Cancel(1)]
    with pytest.raises(msgspec.ValidationError, match=told):
        next(frames)


def test_a_sender_never_blocks_who_queues_and_keeps_their_order() -> None:
    ours, theirs = socket.socketpair()
    sender = FrameSender(ours, "sender")
    big = Tokens([(number, list(range(2000))) for number in range(20)])
    count = 100  # Far more bytes than the socket holds, and nobody reads yet.
    for number in range(count):
        sender.send(big)
        sender.send(Finished(number, "end"))
    received: list[ToClient] = []

    def read() -> None:
        for batch in FrameReader(theirs, list[ToClient]).batches():
            received.extend(batch)

    reading = threading.Thread(target=read)
    reading.start()
    sender.close(timeout_s=300)
    ours.close()
    reading.join(240)
    theirs.close()
    assert [each.request_id for each in received if isinstance(each, Finished)] == list(range(count))
    assert [each for each in received if isinstance(each, Tokens)] == [big] * count


def test_a_sender_whose_peer_is_gone_ends_quietly() -> None:
    ours, theirs = socket.socketpair()
    sender = FrameSender(ours, "sender")
    theirs.close()
    for _ in range(3):
        sender.send(Cancel(1))
    sender.close()
    ours.close()
    assert not [each for each in threading.enumerate() if each.name == "sender"]


def test_what_waits_is_sent_as_frames_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_TOGETHER_BYTES", 1000)
    decoder = msgspec.msgpack.Decoder(list[FromClient])
    queue = FrameQueue()
    messages = [Submit(number, [1] * (number % 40), 1) for number in range(300)]
    messages.insert(150, Submit(0, [1] * 5000, 1))
    for message in messages:
        queue.add(message)
    frames = list(iter(queue.take, b""))
    assert sorted(map(len, frames))[-2] < 1100
    assert len(frames) < 40
    assert list(chain.from_iterable(decode_frames(bytearray(b"".join(frames)), decoder))) == messages


def test_a_message_that_no_reader_takes_is_rejected_and_others_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "_MAX_FRAME_BYTES", 1 << 21)
    ours, theirs = socket.socketpair()
    sender = FrameSender(ours, "sender")
    messages: list[FromClient] = [
        Submit(number, [1] * 9, 1, caller_id="x" * (1 << 20)) for number in range(8)
    ]
    with ours, theirs:
        reading = iter(FrameReader(theirs, list[FromClient]).batches())
        for message in messages:
            sender.send(message)
            with pytest.raises(InvalidTensor, match="less than 2097152 bytes"):
                sender.send(Submit(9, [1], 1, caller_id="x" * (1 << 21)))
        received: list[FromClient] = []
        while len(received) < len(messages):
            received += next(reading)
        assert received == messages
        sender.close()


def test_a_frame_that_is_too_long_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<I", (1 << 28) + 1))
        with pytest.raises(FrameTooLong, match="268435457 bytes"):
            next(FrameReader(theirs, list[FromClient]).batches())
