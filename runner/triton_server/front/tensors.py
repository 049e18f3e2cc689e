"""Tensors of a request for inference: their sizes are checked, and their types become those of the model."""

import math
import struct
from typing import Any

import numpy as np

from errors.requests import InvalidTensor
from errors.triton_front import InvalidInference
from runner.triton_server.front.models import INTEGERS, MAX_RANK, MAX_TEXTS, NUMBERS, TEXT_LENGTH, Model
from runner.triton_server.grpc_wire import MAX_TYPED_BYTES

_SHARED = "shared_memory"
"""Beginning of the names of parameters by which a tensor is in shared memory."""
_CLASSES = "classification"
_ITEM_BYTES = {name: struct.calcsize(f"<{code}") for name, code in NUMBERS.items()} | {"BF16": 2}
_TYPED = {
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}


def adapt(request: Any, model: Model, *, may_share: bool = True) -> None:
    """Bring integers into the model's type, and bare shapes into one with a batch dimension.

    ``may_share``: tensors may be in shared memory. Raises InvalidTensor (E1103), InvalidInference (E1107).
    """
    raw_index = 0
    for output in request.outputs:
        if _CLASSES in output.parameters:  # NOTE: Triton 2.51 ends if there are many.
            expected_output = f"requested without {_CLASSES}"
            raise InvalidTensor(name=output.name, expected=expected_output, value=_CLASSES)
    for tensor in (*request.inputs, *request.outputs):
        if not may_share and any(name.startswith(_SHARED) for name in tensor.parameters):
            there = "in the request: shared memory is closed without TRITON_MANAGEMENT=true"
            raise InvalidTensor(name=tensor.name, expected=there, value="in shared memory")
    for tensor in request.inputs:
        if len(tensor.shape) > MAX_RANK:
            expected_rank = f"of at most {MAX_RANK} dimensions"
            raise InvalidTensor(name=tensor.name, expected=expected_rank, value=len(tensor.shape))
        is_shared = "shared_memory_region" in tensor.parameters
        expected = model.inputs.get(tensor.name)
        if expected is not None:
            if model.has_batch and len(tensor.shape) == len(expected.dims):
                tensor.shape.insert(0, 1)
            if tensor.datatype != expected.datatype and {tensor.datatype, expected.datatype} <= set(INTEGERS):
                if is_shared:
                    raise InvalidTensor(name=tensor.name, expected=expected.datatype, value=tensor.datatype)
                _convert(request, tensor, raw_index, expected.datatype)
        if tensor.datatype == "BYTES" and (count := math.prod(tensor.shape)) > MAX_TEXTS:
            raise InvalidTensor(name=tensor.name, expected=f"at most {MAX_TEXTS} texts", value=count)
        if not is_shared:
            has_raw = raw_index < len(request.raw_input_contents)
            _check_size(tensor, request.raw_input_contents[raw_index] if has_raw else None)
            raw_index += 1


def _check_size(tensor: Any, raw: bytes | None) -> None:
    """Raise InvalidTensor (E1103) unless its data has the size of its shape.

    NOTE: Triton 2.51 takes a last text that is shorter than it says, and sizes that overflow 64 bits; then it
    uses memory that is not its own.
    """
    count = math.prod(tensor.shape)
    if min(tensor.shape, default=0) < 0 or (raw is None and count > MAX_TYPED_BYTES):
        raise InvalidTensor(name=tensor.name, expected="of a shape that it has", value=list(tensor.shape))
    if raw is None:
        return
    if tensor.datatype == "BYTES":
        expected, end, num_texts = f"{count} texts with their lengths", 0, 0
        while end + TEXT_LENGTH.size <= len(raw) and num_texts <= count:
            end += TEXT_LENGTH.size + TEXT_LENGTH.unpack_from(raw, end)[0]
            num_texts += 1
        is_right = (end, num_texts) == (len(raw), count)
    else:
        item_bytes = _ITEM_BYTES.get(tensor.datatype, 1)
        expected = f"{count * item_bytes} bytes"
        is_right = len(raw) == count * item_bytes
    if not is_right:
        raise InvalidTensor(name=tensor.name, expected=expected, value=f"{len(raw)} bytes")


def _convert(request: Any, tensor: Any, raw_index: int, datatype: str) -> None:
    source, target = np.dtype(INTEGERS[tensor.datatype]), np.dtype(INTEGERS[datatype])
    if request.raw_input_contents:
        if raw_index >= len(request.raw_input_contents):
            raise InvalidInference(reason=f"it has no raw_input_contents for {tensor.name}")
        raw = request.raw_input_contents[raw_index]
        if len(raw) % source.itemsize:
            raise InvalidTensor(name=tensor.name, expected=tensor.datatype, value=f"{len(raw)} bytes")
        values = np.frombuffer(raw, source)
    else:
        contents = tensor.contents
        given = [
            *contents.int_contents,
            *contents.int64_contents,
            *contents.uint_contents,
            *contents.uint64_contents,
        ]
        values = np.array(given, object)  # Some may need a sign, others 64 bits.
    limits = np.iinfo(target)
    if values.size and (int(values.min()) < limits.min or int(values.max()) > limits.max):
        bad = int(values.min()) if int(values.min()) < limits.min else int(values.max())
        raise InvalidTensor(name=tensor.name, expected=f"{limits.min} to {limits.max}", value=bad)
    if request.raw_input_contents:
        request.raw_input_contents[raw_index] = values.astype(target).tobytes()
    else:
        typed = _TYPED.get(datatype, "int_contents" if datatype.startswith("I") else "uint_contents")
        tensor.ClearField("contents")
        getattr(tensor.contents, typed).extend(values.tolist())
    tensor.datatype = datatype
