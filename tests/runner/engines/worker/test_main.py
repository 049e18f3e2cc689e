"""What the worker makes of an engine that fails, in a request or as a whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from engine.kinds import KINDS, Kind
from engine.machine.root import SOURCE_ROOT
from errors.engines import EngineCrashed
from errors.requests import PromptTooLong
from errors.wire import ExitReason
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    FromWorker,
    Ready,
    StartFailed,
    Statistics,
    Submit,
    TokenLogProb,
    Tokens,
    ToWorker,
)
from runner.engines.protocol.wire import FrameReader, frame
from runner.engines.worker.main import serve

READY = Ready(engine_kind="brittle", vocab_size=10, max_sequence_length=10, max_batch_size=1)

BROKEN = """
import sys
from engine.kinds import KINDS, Kind
from runner.engines.worker import main as worker
KINDS["brittle"] = Kind(name="brittle", adapter="tests.runner.engines.worker.test_main")
sys.exit(worker.main())
"""
"""A worker whose engine is the one below."""


class BrittleEngine:
    """A stand-in engine that does what the first input id says, for what a good engine never does."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.ready = READY

    def submit(self, request: Submit) -> None:
        match request.input_ids[0]:
            case 0:
                self.sink.failed(request.request_id, ValueError("no\nsuch luck"))
            case 1:
                self.sink.failed(request.request_id, PromptTooLong(prompt_tokens=3, max_input_tokens=2))
            case 2:
                self.sink.tokens([(request.request_id, [7])])
                self.sink.broken(MemoryError("out of memory"))
            case 3:
                self.sink.log_probs([(request.request_id, [TokenLogProb(-1.0)])])
                self.sink.tokens([(request.request_id, [7, 8]), (1, [7])])
                self.sink.finished(request.request_id, "end")
            case 4:
                self.sink.tokens([(request.request_id, [7])])
            case _:
                self.sink.tokens([(request.request_id, [7])])
                self.sink.finished(request.request_id, "end")

    def cancel(self, request_id: int) -> None:
        self.sink.finished(request_id, "cancelled")

    def statistics(self) -> Statistics:
        return Statistics(active=0, queued=0)

    def close(self) -> None:
        self.sink.finished(99, "stop")


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> BrittleEngine:
    if "error" in options:
        raise ImportError(options["error"])
    return BrittleEngine(sink)


class Conversation:
    """The slot's end of a socket to a worker."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        self._connection = connection
        decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        self._messages = (
            message for batch in FrameReader(connection, decoder).batches() for message in batch
        )

    def send(self, message: ToWorker) -> None:
        self._connection.sendall(frame(msgspec.msgpack.Encoder(), message))

    def receive(self) -> FromWorker | None:
        """The next message that is no statistics; None at the end."""
        return next((each for each in self._messages if not isinstance(each, Statistics)), None)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Conversation]:
    """A worker with the engine above, in a thread."""

    monkeypatch.setitem(KINDS, "brittle", Kind(name="brittle", adapter=__name__))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, "brittle", tmp_path, {}, ExitReason()))
    thread.start()
    yield Conversation(ours)
    ours.shutdown(socket.SHUT_RDWR)
    ours.close()
    thread.join(10)
    theirs.close()
    assert not thread.is_alive()


def test_a_worker_says_that_it_is_ready_before_anything_else(worker: Conversation) -> None:
    assert worker.receive() == READY


def test_an_error_without_a_code_becomes_e2109(
    worker: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    assert worker.receive() == READY
    worker.send(Submit(1, input_ids=[0], max_tokens=1))
    answer = worker.receive()
    assert isinstance(answer, Failed)
    assert answer.request_id == 1
    error = answer.error.restore()
    assert str(error).startswith("E2109 EngineFailed: The brittle engine failed on this request")
    assert error.facts["reason"] == "ValueError: no\\nsuch luck"
    assert "request 1 failed" in caplog.text


def test_a_coded_error_keeps_its_code_and_is_nothing_to_log(
    worker: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    assert worker.receive() == READY
    worker.send(Submit(1, input_ids=[1], max_tokens=1))
    answer = worker.receive()
    assert isinstance(answer, Failed)
    error = answer.error.restore()
    assert str(error) == str(PromptTooLong(prompt_tokens=3, max_input_tokens=2))
    assert error.facts == {"prompt_tokens": 3, "max_input_tokens": 2, "excess_tokens": 1}
    assert caplog.text == ""


def test_a_request_that_failed_does_not_touch_the_next(worker: Conversation) -> None:
    assert worker.receive() == READY
    worker.send(Submit(1, input_ids=[0], max_tokens=1))
    worker.send(Submit(2, input_ids=[5], max_tokens=1))
    worker.send(Cancel(3))
    assert isinstance(worker.receive(), Failed)
    assert worker.receive() == Tokens([(2, [7])])
    assert worker.receive() == Finished(2, "end")
    assert worker.receive() == Finished(3, "cancelled")


@pytest.mark.parametrize(
    ("fault", "counts"), [(3, "1 log probabilities for 2 tokens"), (4, "0 log probabilities for 1 tokens")]
)
def test_an_engine_that_sends_too_few_log_probabilities_fails_the_request(
    worker: Conversation, fault: int, counts: str
) -> None:
    assert worker.receive() == READY
    worker.send(Submit(2, input_ids=[fault], max_tokens=2, wants_log_probs=True))
    received = [worker.receive() for _ in range(4 if fault == 3 else 2)]
    failure = next(each for each in received if isinstance(each, Failed))
    assert (failure.request_id, failure.error.code) == (2, "E2109")
    assert counts in failure.error.sentence
    tokens = [pair for each in received if isinstance(each, Tokens) for pair in each.new]
    assert tokens == ([(1, [7])] if fault == 3 else [])


def test_an_engine_whose_library_is_missing_is_e2108(worker: Conversation, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert serve(theirs, "brittle", tmp_path, {"error": "no module named torch"}, ExitReason()) == 1
        answer = Conversation(ours).receive()
    assert isinstance(answer, StartFailed)
    assert answer.error.code == "E2108"
    assert answer.error.sentence.startswith("The brittle engine could not start")
    assert "no module named torch" in answer.error.sentence


def test_a_broken_engine_ends_its_process_after_what_it_had_to_say(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    exit_reason = ExitReason()
    with ours, theirs:
        arguments = ["--socket-fd", str(theirs.fileno()), "--exit-reason-fd", str(exit_reason.descriptor)]
        arguments += ["--kind", "brittle", "--engine-dir", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-c", BROKEN, *arguments],
            env=dict(os.environ, PYTHONPATH=str(SOURCE_ROOT)),
            pass_fds=[theirs.fileno(), exit_reason.descriptor],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        worker = Conversation(ours)
        assert worker.receive() == READY
        worker.send(Submit(1, input_ids=[2], max_tokens=1))
        assert worker.receive() == Tokens([(1, [7])])
        assert worker.receive() is None
        _, log = process.communicate(timeout=300)
    assert process.returncode == 70
    error = exit_reason.read()
    assert isinstance(error, EngineCrashed)
    assert error.facts == {"engine_kind": "brittle", "reason": "MemoryError: out of memory"}
    assert "E2107" in log
    assert "MemoryError: out of memory" in log
