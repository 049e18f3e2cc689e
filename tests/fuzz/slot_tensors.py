"""Tensors that Triton lets through to the slot: refused, or a request that the engine server takes."""

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import msgpack

from engine.kinds import KINDS
from errors.coded_error import CodedError
from runner.engines.protocol.checks import check_request
from runner.engines.protocol.messages import GUIDE_TYPES, Ready, Submit
from runner.slot.request import parse_row
from runner.slot.rows import Tensors, batch_size
from runner.triton_server.front.models import NUMBERS
from tests.fuzz.bounds import bounded
from tests.fuzz.choices import NASTY_NUMBERS, Choices
from tests.fuzz.refusal import check_refusal
from tests.fuzz.triton_standin import inputs_of

_INPUTS = inputs_of("tensorrt_llm")
_NAMES = tuple(_INPUTS)
_TEXTS = (b"json", b"regex", b"json_schema", b"", b"\xff", b"x" * 300, b"{}", b"[")
_NUMBERS = (*NASTY_NUMBERS, 1, 1, 2, 3)
_DECODER = msgpack.Decoder(Submit)


def slot_tensors(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.of(tuple(sorted(KINDS)))
    ready = Ready(kind, vocab_size=1000, max_sequence_length=64, max_batch_size=8, guide_types=GUIDE_TYPES)
    rows = 1 + (choices.below(8) == 1)
    tensors: Tensors = {
        "input_ids": np.full((rows, 3), 5, np.int32),
        "request_output_len": np.full(rows, 4, np.int32),
        **{name: _tensor(choices, name, rows) for name in choices.some(_NAMES, 5)},
    }
    with bounded(sum(each.nbytes for each in tensors.values())):
        try:
            requests = [
                parse_row(tensors, index, ready, includes_input=False) for index in range(batch_size(tensors))
            ]
        except CodedError as exc:
            check_refusal(exc, "E1")
            return
        for request in requests:
            for submit in request.submits():
                check_request(submit, ready)
                encoded = msgpack.encode(submit)
                # NOTE: not compared as objects, of which one may be NaN: the adapter refuses it.
                assert msgpack.encode(_DECODER.decode(encoded)) == encoded


def _tensor(choices: Choices, name: str, rows: int) -> npt.NDArray[Any]:
    datatype, dims, is_reshaped = _INPUTS[name]
    shape = [rows, *(choices.of((1, 2, 3, 0)) if size < 0 else size for size in dims)]
    size = int(np.prod(shape))
    shape = shape[:1] if is_reshaped else shape
    if datatype == "BYTES":
        return np.array([choices.of(_TEXTS) for _ in range(size)], object).reshape(shape)
    target = np.dtype(NUMBERS[datatype])
    array = np.zeros(size, target)
    for index in range(size):
        number = choices.of(_NUMBERS)
        if target.kind == "f":
            with np.errstate(over="ignore"):
                array[index] = number if isinstance(number, float) or abs(number) < 1 << 64 else np.inf
        else:
            is_whole = isinstance(number, int)
            array[index] = np.array(int(number) % (1 << 64) if is_whole else 0, np.uint64).astype(target)
    return array.reshape(shape)
