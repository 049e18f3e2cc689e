"""Garbage on the slot's own socket: from a slot to its client, and from an asker to a slot."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import msgpack
from runner.slot.client import SlotClient
from runner.slot.server import SlotSocket

from errors.coded_error import CodedError
from errors.requests import InvalidTensor
from runner.slot.call import Call
from runner.slot.request import parse_row
from runner.slot.tensors import Tensors, batch_size
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal
from tests.runner.slot.test_request import READY

TIMEOUT_S = 0.02
_LONGEST_S = 60.0
_EVENT_KEYS = (
    *("output_ids", "finish_reason", "error", "output_log_probs", "top_log_prob_ids", "top_log_probs"),
    *("arrival_time_ns", "sequence_length"),
)
_ANSWERS = (
    *([[1, {"output_ids": 5}]], [[1, {"output_ids": [6, 7], "finish_reason": "end"}]], [[1, {}]], []),
    *(
        [[1, {"error": {"code": "E2107", "name": "EngineCrashed", "sentence": "x"}}]],
        [[1, {"error": "x"}]],
        [[1, {"output_ids": [-1]}]],
        [[2, {"output_ids": 1}]],
    ),
    *([[1, {"finish_reason": "end"}]], [[1, {"output_ids": 1 << 40}]], {"a": 1}, [[]], 7, None),
)
_TENSORS = (
    *(
        "input_ids",
        "input_lengths",
        "request_output_len",
        "temperature",
        "runtime_top_k",
        "runtime_top_p",
        "id",
    ),
    *("random_seed", "stop_words_list", "bad_words_list", "logit_bias_ids", "logit_bias_values", "lora_name"),
    *("guided_decoding_guide_type", "guided_decoding_guide", "streaming", "end_id", "pad_id", "min_length"),
    *(
        "num_return_sequences",
        "beam_width",
        "return_log_probs",
        "num_top_log_probs",
        "runner_seconds",
        "stop",
    ),
)
_VALUES = (
    b"\1\0\0\0",
    b"\1\0\0",
    b"",
    [1, 2],
    [[1], [2, 3]],
    1,
    0,
    -1,
    0.5,
    "regex",
    True,
    [],
    None,
    {"a": 1},
    "\0",
)
_folder = Path(tempfile.mkdtemp(prefix="fuzz-slot-"))
_loop = asyncio.new_event_loop()


def slot_answers(data: bytes) -> None:
    _loop.run_until_complete(asyncio.wait_for(_ask(Choices(data)), _LONGEST_S))


async def _ask(choices: Choices) -> None:
    answer = b"".join(_frame(choices, _answer(choices)) for _ in range(choices.below(4)))
    ends = choices.flag()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(4)
            writer.write(answer)
            if not ends:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    path = _folder / "answers"
    server = await asyncio.start_unix_server(serve, str(path))
    async with server, SlotClient(path, TIMEOUT_S) as client:
        try:
            async for events in client.generate({"input_ids": [1]}):
                for event in events:
                    assert all(0 <= token < 1 << 32 for token in event.tokens)
        except CodedError as exc:
            check_refusal(exc, "E")
    path.unlink()


def _answer(choices: Choices) -> object:
    if choices.flag():
        return choices.of(_ANSWERS)
    return [[choices.of((1, 1, "x", -1)), choices.object(_EVENT_KEYS, (5, [5, 6], "end"))]]


def _frame(choices: Choices, message: object) -> bytes:
    try:
        body = choices.damaged(msgpack.encode(message))
    except (OverflowError, UnicodeEncodeError):
        body = choices.rest()
    size = len(body) if choices.below(6) else choices.of((0, 1, len(body) + 1, 1 << 31, (1 << 32) - 1))
    return struct.pack("<I", size) + body


class _Slot:
    """As the slot's model reads what comes, and refuses or answers it."""

    def __init__(self) -> None:
        self.running: list[Call] = []
        self.socket = SlotSocket(_folder / "asks", self._start, self._left)
        self.faults: list[Exception] = []

    def _start(self, read: Callable[[], Tensors], call: Call) -> None:
        try:
            tensors = read()
            for index in range(batch_size(tensors)):
                parse_row(tensors, index, READY, includes_input=False)
        except CodedError as exc:
            check_refusal(exc, "E1")
            call.refuse(exc)
        except Exception as exc:  # noqa: BLE001 - the slot answers E1103 to what can't be read
            call.refuse(InvalidTensor(name="request", expected="of the model's tensors", value=exc))
        else:
            self.running.append(call)

    def _left(self, call: Call) -> None:
        if call in self.running:
            self.running.remove(call)


def slot_asks(data: bytes) -> None:
    choices = Choices(data)
    logging.disable(logging.ERROR)  # Of connections that break off.
    slot = _Slot()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_LONGEST_S)
            connection.connect(str(_folder / "asks"))
            connection.sendall(b"".join(_frame(choices, _asked(choices)) for _ in range(choices.below(5))))
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # It was closed with something of ours unread.
        for thread in threading.enumerate():
            if thread.name == "slot-client":
                thread.join(_LONGEST_S)
        assert slot.running == []
    finally:
        slot.socket.close()
        logging.disable(logging.NOTSET)


def _asked(choices: Choices) -> object:
    kind = choices.of(("StartRequest", "StartRequest", "StartRequest", "CancelRequest", "Other"))
    base = {"input_ids": b"\1\0\0\0", "input_lengths": 1, "request_output_len": 2}
    more = {choices.of(_TENSORS): choices.of(_VALUES) for _ in range(choices.below(4))}
    return {"type": kind, "request_id": choices.of((1, 2, 3, "x", -1)), "tensors": {**base, **more}}


def clean_up() -> None:
    shutil.rmtree(_folder, ignore_errors=True)
