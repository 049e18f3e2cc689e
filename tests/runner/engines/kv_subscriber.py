"""A subscriber of KV events, which reads them as routers do."""

from typing import Any

import msgspec
import zmq

TIMEOUT_MS = 240_000


class Subscriber:
    def __init__(self, endpoint: str, topic: str = "") -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.rcvtimeo = TIMEOUT_MS
        self._socket.subscribe(topic)
        self._socket.connect(endpoint)
        self.numbers: list[int] = []
        self.topics: set[bytes] = set()

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the next batch."""
        topic, number, payload = self._socket.recv_multipart()
        self.topics.add(topic)
        self.numbers.append(int.from_bytes(number, "big"))
        return events_of(payload)

    def has_news(self) -> bool:
        return bool(self._socket.poll(0))

    def close(self) -> None:
        self._socket.close(linger=0)


def events_of(payload: bytes) -> list[dict[str, Any]]:
    time_s, events, rank = msgspec.msgpack.decode(payload)
    assert time_s > 0
    assert rank == 0
    assert isinstance(events, list)
    return events


def replayed(endpoint: str, first: int, own_topic: bytes = b"") -> dict[int, list[dict[str, Any]]]:
    """Return the batches from number ``first`` on, sent again."""
    batches = {}
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, TIMEOUT_MS
        socket.connect(endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            empty, topic, number, payload = socket.recv_multipart()
            assert empty == b""
            if not payload:
                assert int.from_bytes(number, "big", signed=True) == -1
                return batches
            assert topic == own_topic
            batches[int.from_bytes(number, "big")] = events_of(payload)
