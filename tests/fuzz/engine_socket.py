"""Hostile frames on the engine server's socket, by a client."""

import atexit
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import msgpack

from errors.wire import ExitReason
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    GUIDE_TYPES,
    Failed,
    Finished,
    LogProbs,
    Ready,
    Statistics,
    Submit,
    TokenLogProb,
    Tokens,
)
from runner.engines.server.clients import Clients
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Requests
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal
from tests.runner.engines.engine_server import EngineServerClient

_LONGEST_S = 60.0
_KIND = "transformers"
READY = Ready(_KIND, vocab_size=1000, max_sequence_length=64, max_batch_size=8, guide_types=GUIDE_TYPES)
_ENCODER = msgpack.Encoder()
GOOD = Submit(1, [7, 8, 9], max_tokens=3)
UNSTARTABLE = 1
"""The ``lora_task_id`` of requests that the stand-in's ``submit`` raises for."""
_folder = Path(tempfile.mkdtemp(prefix="fuzz-engine-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)

_REQUEST_FIELDS = tuple(Submit.__struct_fields__)
_SAMPLING_FIELDS = tuple(type(GOOD.sampling).__struct_fields__)
_VALUES: tuple[object, ...] = (
    *(0, 1, 2, -1, 64, 1 << 31, 1 << 63, (1 << 64) - 1, 0.5, -0.5, float("nan"), float("inf")),
    *([], [1], [[1], []], [[1, 2]], [-1], [5000], ["x"], {}, {"5": 1.0}, {5: float("nan")}, None, True),
    *("", "x", "\0", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", b"\1", {"type": "regex", "text": "["}),
    *({"type": "json"}, {"type": "x"}, {"x": {"dtype": "int32", "shape": [1], "data": b"\1"}}),
)


class _Engine:
    """Answers with the prompt. An even limit ends a request; an odd one leaves it until it is cancelled."""

    ready = READY

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.running: set[int] = set()

    def submit(self, request: Submit) -> None:
        number, tokens = request.request_id, request.input_ids
        if request.lora_task_id == UNSTARTABLE:
            raise ValueError("an engine that can't start a request")
        self.running.add(number)
        if request.wants_log_probs:
            self._sink.log_probs([(number, [TokenLogProb(-1.0)] * len(tokens))])
        self._sink.tokens([(number, tokens)])
        if request.max_tokens % 2 == 0 or request.max_tokens == GOOD.max_tokens:
            self.running.discard(number)
            self._sink.finished(number, "length")

    def cancel(self, request_id: int) -> None:
        if request_id in self.running:
            self.running.discard(request_id)
            self._sink.finished(request_id, "cancelled")

    def statistics(self) -> Statistics:
        return Statistics(active=len(self.running), queued=0)

    def close(self) -> None: ...


class _Server:
    """The engine server's sockets and requests in this process, and a client that breaks no rule."""

    def __init__(self) -> None:
        self._requests = Requests(_KIND, EngineMetrics(_KIND), ExitReason())
        self.engine = _Engine(self._requests)
        self._requests.serve(self.engine)
        self.path = _folder / "requests"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        Clients(listener, self._requests, self.engine)
        self._other = EngineServerClient(self.path)
        self._ids = iter(range(1, 1 << 62))

    def check(self) -> None:
        """Check that the other client is served, and that nothing of the hostile one is left."""
        submit = Submit(next(self._ids), GOOD.input_ids, GOOD.max_tokens)
        self._other.send(submit)
        tokens: list[int] = []
        while not isinstance(answer := self._other.receive(), Finished):
            assert isinstance(answer, Tokens)
            for request_id, new in answer.new:
                assert request_id == submit.request_id
                tokens += new
        assert (tokens, answer.reason) == (GOOD.input_ids, "length")
        _wait_until(lambda: not self.engine.running and not self._requests._running)


server = lru_cache(_Server)


def engine_requests(data: bytes) -> None:
    choices, under_test = Choices(data), server()
    decoder = msgpack.Decoder(list[Ready | LogProbs | Tokens | Finished | Failed | Statistics])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_LONGEST_S)
        connection.connect(str(under_test.path))
        received = b""
        with suppress(ConnectionError):  # The server closes it with frames of ours unread.
            for _ in range(choices.below(5)):
                connection.sendall(_framed(choices, [_request(choices) for _ in range(choices.below(4))]))
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                received += part
    while len(received) >= 4 and len(received) >= 4 + (size := struct.unpack_from("<I", received)[0]):
        for message in decoder.decode(received[4 : 4 + size]):
            if isinstance(message, Failed):
                check_refusal(message.error.restore(), "E1|E2109")
        received = received[4 + size :]
    under_test.check()


def _request(choices: Choices) -> object:
    if not choices.below(8):
        return choices.value(_VALUES, _REQUEST_FIELDS)
    request_id = choices.of((1, 1, 2, 3, "x", -1, 1 << 63))
    if not choices.below(4):
        return {"type": "Cancel", "request_id": request_id}
    more = {choices.of(_REQUEST_FIELDS): choices.of(_VALUES) for _ in range(choices.below(4))}
    sampling = {choices.of(_SAMPLING_FIELDS): choices.of(_VALUES) for _ in range(choices.below(3))}
    submit = {"type": "Submit", "request_id": request_id, "input_ids": [5, 6], "sampling": sampling}
    return {**submit, "max_tokens": choices.of((2, 1)), **more}


def _framed(choices: Choices, messages: object) -> bytes:
    try:
        body = choices.damaged(_ENCODER.encode(messages))
    except (OverflowError, UnicodeEncodeError):
        body = choices.rest()
    if not choices.below(16):
        body = b"\x91" * 50_000  # Nested without end.
    size = len(body) if choices.below(6) else choices.of((0, 1, len(body) + 1, 1 << 31, (1 << 32) - 1))
    return struct.pack("<I", size) + body


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _LONGEST_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.0005)
