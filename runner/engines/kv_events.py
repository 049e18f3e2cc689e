"""Events of a KV cache, published by ZeroMQ in the form of vLLM 0.33 (``vllm.distributed.kv_events``)."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zmq

_END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, tag=True):
    """Blocks that were stored, which continue the block ``parent_block_hash``."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int]
    medium: str = "GPU"


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: Sequence[Event]
    data_parallel_rank: int = 0


class Publisher:
    """A publisher of batches, which have sequence numbers from 0."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Listen or connect, by vLLM's rule. ``config``: vLLM's ``kv_events_config``. Raises ZMQError."""
        endpoint, replay_endpoint = config["endpoint"], config["replay_endpoint"]
        self._topic = config["topic"].encode()
        self._numbers = itertools.count()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config["buffer_steps"])
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._publishing = context.socket(zmq.PUB)
        self._publishing.set_hwm(config["hwm"])
        listens = "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc:")
        (self._publishing.bind if listens else self._publishing.connect)(endpoint)
        if replay_endpoint is not None:
            replaying = context.socket(zmq.ROUTER)
            replaying.set_hwm(2 * (config["buffer_steps"] + 1))
            replaying.bind(replay_endpoint)
            threading.Thread(target=self._replay, args=[replaying], name="kv-replay", daemon=True).start()

    def publish(self, events: Sequence[Event]) -> None:
        """Publish a batch. Call it from one thread at a time."""
        number = next(self._numbers).to_bytes(8, "big")
        batch = msgspec.msgpack.encode(Batch(time.time(), events))
        self._kept.append((number, batch))
        self._publishing.send_multipart([self._topic, number, batch])

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        """Send batches again to each client that sends the number of the first."""
        while True:
            match socket.recv_multipart():
                case [client, empty, first]:
                    for number, batch in list(self._kept):
                        if number >= first:
                            socket.send_multipart([client, empty, self._topic, number, batch])
                    socket.send_multipart([client, empty, b"", _END, b""])
