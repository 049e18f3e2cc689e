"""Inference requests in JSON: Triton's generate extension, and the KServe protocol with its binary extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

import struct
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from errors.bounded_repr import bounded_repr
from errors.requests import InvalidTensor
from errors.triton_front import InvalidInference
from runner.supervision.json_bounds import JSONBounds
from runner.triton_server.front.answers import values_of
from runner.triton_server.front.models import INTEGERS, MAX_RANK, MAX_TEXTS, NUMBERS, TEXT_LENGTH, Model

_MAX_VALUES = 1 << 19
"""Limit of keys and values in a JSON body: each becomes an object of Python."""
_PART_BYTES = 1 << 17
_MAX_TENSORS = 256


def generate_request(body: bytes, model: Model, version: str) -> Any:
    """Convert a body of the generate extension into a ``ModelInferRequest``. Raises E1103, E1107.

    Members that name no input of the model are ignored, as by Triton.
    """
    document = _object(_decode(body))
    request = pb.ModelInferRequest(model_name=model.name, model_version=version)
    for name, value in document.items():
        if name == "id":
            request.id = _text("id", value)
        elif name == "parameters":
            set_parameters(request.parameters, value)
        elif name in model.inputs:
            add_input(request, model, name, value)
    return request


def add_input(request: Any, model: Model, name: str, value: object) -> None:
    """Add an input of the model to a ``ModelInferRequest``, in its type and shape. Raises E1103."""
    values, given = _flat(value, name)
    datatype = model.inputs[name].datatype
    tensor = request.inputs.add(name=name, datatype=datatype)
    tensor.shape.extend(model.shape_of(name, given))
    request.raw_input_contents.append(_raw(name, datatype, values))


def infer_request(
    body: bytes, json_length: int | None, model_name: str, version: str
) -> "tuple[Any, InferFormat]":
    """Convert a body of the KServe protocol into a ``ModelInferRequest``. Raises E1103, E1107.

    ``json_length``: the length of the JSON in bytes, which binary tensors follow; None: all of the body.
    """
    if json_length is not None and not 0 <= json_length <= len(body):
        raise InvalidInference(
            reason=f"Inference-Header-Content-Length is {json_length}, the body {len(body)}"
        )
    document = _object(_decode(body[:json_length]))
    binary = body[json_length:] if json_length is not None else b""
    request = pb.ModelInferRequest(model_name=model_name, model_version=version)
    if "id" in document:
        request.id = _text("id", document["id"])
    parameters = _object(document.get("parameters", {}))
    answers = InferFormat(bool(parameters.pop("binary_data_output", False)))
    set_parameters(request.parameters, parameters)
    for each in _list("inputs", document.get("inputs")):
        tensor = _object(each)
        name = _text("name of an input", tensor.get("name"))
        datatype = _text(f"datatype of {name}", tensor.get("datatype"))
        shape = [
            int(size) if isinstance(size, int) else -1
            for size in _list(f"shape of {name}", tensor.get("shape"))
        ]
        if any(not 0 <= size < 1 << 31 for size in shape):
            raise InvalidTensor(name=f"shape of {name}", expected="a list of sizes", value=tensor["shape"])
        parameters = dict(_object(tensor.get("parameters", {})))
        size = parameters.pop("binary_data_size", None)
        added = request.inputs.add(name=name, datatype=datatype, shape=shape)
        set_parameters(added.parameters, parameters)
        if size is not None:
            if not isinstance(size, int) or not 0 <= size <= len(binary):
                raise InvalidTensor(
                    name=f"binary_data_size of {name}", expected=f"0 to {len(binary)}", value=size
                )
            request.raw_input_contents.append(binary[:size])
            binary = binary[size:]
        elif "data" in tensor:
            request.raw_input_contents.append(_raw(name, datatype, _flat(tensor["data"], name)[0]))
    for each in _list("outputs", document.get("outputs", [])):
        output = _object(each)
        name = _text("name of an output", output.get("name"))
        parameters = dict(_object(output.get("parameters", {})))
        if "binary_data" in parameters:
            answers.binary[name] = bool(parameters.pop("binary_data"))
        set_parameters(request.outputs.add(name=name).parameters, parameters)
    return request, answers


class InferFormat:
    """The outputs of an answer that are binary."""

    def __init__(self, is_binary: bool) -> None:
        self._is_binary = is_binary
        self.binary: dict[str, bool] = {}

    def body(self, response: Any) -> tuple[bytes, int | None]:
        """Write a ``ModelInferResponse``. Return it, and the length of its JSON if binary tensors follow."""
        outputs, tail = [], []
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            shown: dict[str, Any] = {
                "name": output.name,
                "datatype": output.datatype,
                "shape": list(output.shape),
            }
            if self.binary.get(output.name, self._is_binary):
                shown["parameters"] = {"binary_data_size": len(raw)}
                tail.append(raw)
            else:
                shown["data"] = values_of(output.datatype, raw)
            outputs.append(shown)
        document: dict[str, Any] = {"id": response.id} if response.id else {}
        document |= {"model_name": response.model_name, "model_version": response.model_version}
        head = msgspec.json.encode(document | {"outputs": outputs})
        return b"".join([head, *tail]), len(head) if tail else None


def set_parameters(target: Any, parameters: object) -> None:
    """Fill a map of ``InferParameter``. Raises InvalidInference."""
    for name, value in _object(parameters).items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        elif isinstance(value, str):
            target[name].string_param = value
        else:
            raise InvalidInference(reason=f"the parameter {name[:100]!r} is not a string, number or boolean")


def _decode(body: bytes) -> object:
    bounds = JSONBounds(_MAX_VALUES, "send binary tensors", InvalidInference, string_values=2)
    for start in range(0, len(body), _PART_BYTES):  # So that it ends early.
        bounds.feed(body[start : start + _PART_BYTES])
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInference(reason=str(exc)) from exc


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MAX_TENSORS:
        shown = bounded_repr(value)[:100]
        raise InvalidInference(reason=f"{shown} is not a JSON object with at most {_MAX_TENSORS} members")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MAX_TENSORS:
        raise InvalidInference(reason=f"{name} is not a list with at most {_MAX_TENSORS} members")
    return value


def _text(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > 1024:
        raise InvalidInference(reason=f"{name} is not a string of at most 1,024 characters")
    return value


def _flat(value: object, name: str) -> tuple[list[Any], list[int]]:
    """Return the values of nested lists in order, and how they are nested. Raises InvalidTensor (E1103)."""
    values: list[Any] = [value]
    shape: list[int] = []
    while values and isinstance(values[0], list):
        length = len(values[0])
        if len(shape) == MAX_RANK or any(
            not isinstance(each, list) or len(each) != length for each in values
        ):
            raise InvalidTensor(name=name, expected="lists of the same length", value=value)
        shape.append(length)
        values = list(chain.from_iterable(values))
    return values, shape


def _raw(name: str, datatype: str, values: list[Any]) -> bytes:
    """Convert values to Triton's binary form. Raises InvalidTensor (E1103)."""
    if datatype == "BYTES":
        if len(values) > MAX_TEXTS:
            raise InvalidTensor(name=name, expected=f"at most {MAX_TEXTS} texts", value=len(values))
        pieces = []
        for each in values:
            if not isinstance(each, str):
                raise InvalidTensor(name=name, expected="a string", value=each)
            text = each.encode()
            pieces += [TEXT_LENGTH.pack(len(text)), text]
        return b"".join(pieces)
    if datatype not in NUMBERS:
        raise InvalidTensor(name=f"datatype of {name}", expected="a type of Triton", value=datatype)
    kind = {int} if datatype in INTEGERS else {bool} if datatype == "BOOL" else {int, float}
    if not set(map(type, values)) <= kind:
        bad = next(each for each in values if type(each) not in kind)
        raise InvalidTensor(name=name, expected=f"of type {datatype}", value=bad)
    try:
        return struct.pack(f"<{len(values)}{NUMBERS[datatype]}", *values)
    except (struct.error, OverflowError) as exc:
        if datatype not in INTEGERS:
            raise InvalidTensor(name=name, expected=f"of type {datatype}", value=values) from exc
        limits = np.iinfo(INTEGERS[datatype])
        bad = min(values) if min(values) < limits.min else max(values)
        raise InvalidTensor(name=name, expected=f"{limits.min} to {limits.max}", value=bad) from exc
