"""Responses that the slot sends to the front itself, past Triton: all but the last of each request.

They reach their call as if they had come from Triton. The slot sends the last response through Triton after
the others are in the socket. The front calls ``drain`` before it passes on the last one, to keep the order.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
from tritonclient.grpc import service_pb2 as pb

from runner.engines.protocol.triton_front import DirectResponse
from runner.engines.protocol.wire import FrameTooLong, decode_frames
from runner.triton_server.model_names import SLOT

IS_FINAL = "triton_final_response"
_READ_BYTES = 1 << 18

log = logging.getLogger("cog_triton.triton_front")


class Receiver(Protocol):
    """A call of Triton."""

    def receive(self, message: bytes) -> None:
        """Take a ``ModelStreamInferResponse``."""

    def responses_lost(self) -> None:
        """End the call with an error: some of its responses are lost."""


class DirectResponses:
    """Listener at ``path``; ``calls`` are those whose responses may come, by their key."""

    def __init__(self, path: Path) -> None:
        self.calls: dict[str, Receiver] = {}
        self._loop = asyncio.get_running_loop()
        self._decoder = msgspec.msgpack.Decoder(list[DirectResponse])
        self._data = bytearray()
        self._connection: socket.socket | None = None
        path.unlink(missing_ok=True)  # Of the front before.
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen()
        self._loop.add_reader(self._listener, self._accept)

    def drain(self) -> None:
        """Pass on the responses that have arrived."""
        self._accept()
        with suppress(BlockingIOError):
            while (connection := self._connection) is not None:
                self._take(connection.recv(_READ_BYTES))

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._disconnect()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                accepted, _ = self._listener.accept()
                if self._connection is not None:  # Of a slot that has ended.
                    self._slot_disconnected()
                accepted.setblocking(False)
                self._connection = accepted
                self._loop.add_reader(accepted, self.drain)

    def _take(self, data: bytes) -> None:
        self._data += data
        failed: dict[str, Receiver] = {}
        try:
            for responses in decode_frames(self._data, self._decoder):
                for response in responses:
                    call = self.calls.get(response.call)
                    if call is None or response.call in failed:
                        continue
                    if not self._pass_on(call.receive, response):
                        failed[response.call] = call
        except (msgspec.MsgspecError, FrameTooLong, UnicodeDecodeError) as exc:
            log.error("malformed response of the slot: %s", exc)
            data = b""
        for call in failed.values():
            call.responses_lost()
        if not data:
            self._slot_disconnected()

    def _pass_on(self, receive: Callable[[bytes], None], response: DirectResponse) -> bool:
        try:
            receive(_message(response))
        except Exception:  # Other calls go on.
            log.exception("a response of the slot could not be passed on")
            return False
        return True

    def _slot_disconnected(self) -> None:
        self._disconnect()
        for call in list(self.calls.values()):
            call.responses_lost()

    def _disconnect(self) -> None:
        self._data.clear()
        if self._connection is not None:
            self._loop.remove_reader(self._connection)
            self._connection.close()
            self._connection = None


def _message(response: DirectResponse) -> bytes:
    message = pb.ModelStreamInferResponse()
    inner = message.infer_response
    inner.model_name, inner.model_version, inner.id = SLOT, response.model_version, response.request_id
    inner.parameters[IS_FINAL].bool_param = False
    for tensor in response.tensors:
        inner.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        inner.raw_output_contents.append(tensor.content)
    data: bytes = message.SerializeToString()
    return data
