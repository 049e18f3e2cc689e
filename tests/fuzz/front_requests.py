"""Inference requests to the front, as JSON and as protobuf: refused, or given to Triton unchanged."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from runner.triton_server.front.answers import values_of
from runner.triton_server.front.grpc.inferences import _request
from runner.triton_server.front.json_requests import generate_request, infer_request
from runner.triton_server.front.models import INTEGERS, NUMBERS
from runner.triton_server.front.tensors import adapt
from runner.triton_server.grpc_wire import check_wire
from tests.fuzz.bounds import bounded
from tests.fuzz.choices import NASTY_NUMBERS, Choices, as_json
from tests.fuzz.refusal import check_refusal
from tests.fuzz.triton_standin import models

T = TypeVar("T")

_NAMES = (
    *("input_ids", "request_output_len", "stop_words_list", "temperature", "random_seed", "streaming", "x"),
    *("text_input", "max_tokens", "stop_words", "guided_decoding_guide", "stream_id", "id", "parameters"),
    *("image_input", "draft_logits", "context_phase_params"),
)
_TYPES = (*NUMBERS, "BYTES", "BF16", "", "int32")
_MOST_TYPES = (*INTEGERS, *INTEGERS, *_TYPES)
_VALUES: tuple[object, ...] = (
    *([1, 2, 3], [[1, 2]], [[[1]]], [[1], [1, 2]], [[], []], [], 5, -1, 0.5, True, "hi", ["a", "b"], None),
    *([["a"]], 1 << 31, 1 << 63, 10**40, [1, True], [0.5, 1], {"a": 1}, [[[[[[[[[1]]]]]]]]], "\u0000", "é"),
)
_CONTENTS = (
    *("int_contents", "int64_contents", "uint_contents", "uint64_contents", "bool_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
_PARAMETERS = (
    *("binary_data", "binary_data_size", "binary_data_output", "triton_final_response", "priority"),
    "timeout",
    *("sequence_id", "cog_triton_call", "shared_memory_region", "triton_enable_empty_final_response", ""),
)
_TAILS = (
    *(b"\x2a\xff\xff\xff\xff\x0f", b"\x53\x54", b"\x80" * 11, b"\x2a\x04\x2a\x02\x0a\x05"),
    *(b"\x2a\x00" * 20_000, b"\x2a\xc4\x13\x1a\xc1\x13" + b"\x7f" * 2497),
)
"""A field that claims 4 GiB, a group, a number without end, a field longer than its message, many fields, a
shape of many dimensions."""
_UNFIT = (TypeError, ValueError, OverflowError)
"""What protobuf raises for a value of another type."""
_DEEP = (b"[" * 20_000, b'{"inputs":' * 5000, b'{"a":[' * 2000 + b"1" + b"]}" * 2000)


def front_json(data: bytes) -> None:
    choices = Choices(data)
    model = models()[choices.of(("tensorrt_llm", "ensemble"))]
    if choices.flag():
        body = _damaged(choices, generate_document(choices))
        with bounded(len(body)):
            request = _coded(lambda: generate_request(body, model, "1"))
        if request is not None:
            _check_values(request, msgspec.json.decode(body))
            _check_adapted(request)
        return
    body, json_length = infer_body(choices)
    with bounded(len(body)):
        accepted = _coded(lambda: infer_request(body, json_length, model.name, ""))
    if accepted is not None:
        request, answers = accepted
        inputs = msgspec.json.decode(body[:json_length])["inputs"]
        given = {each["name"]: each["data"] for each in inputs if "data" in each}
        if len(given) == len(request.inputs):
            _check_values(request, given)
        _check_adapted(request)
        response = pb.ModelInferResponse(raw_output_contents=[b"\2\0\0\0hi"])
        response.outputs.add(name=choices.of(_NAMES), datatype=choices.of(("BYTES", "UINT8")), shape=[1])
        answers.body(response)


def generate_document(choices: Choices) -> bytes:
    document = choices.object(_NAMES, _VALUES)
    if choices.flag():
        document["parameters"] = choices.object(_PARAMETERS, _VALUES)
    return as_json(document)


def infer_body(choices: Choices) -> tuple[bytes, int | None]:
    inputs, binary = [], b""
    for _ in range(choices.below(5)):
        tensor: dict[str, object] = {"name": choices.of(_NAMES), "datatype": choices.of(_TYPES)}
        tensor["shape"] = choices.of(([1], [1, 1], [1, 2], [2, 1], [], [1 << 31], [1 << 70], "x", [-1], [0]))
        if choices.flag():
            tensor["data"] = choices.value(_VALUES)
        else:
            content = choices.bytes(16)
            binary += content
            parameters = choices.object(_PARAMETERS, _VALUES)
            tensor["parameters"] = {"binary_data_size": len(content), **parameters}
        inputs.append(tensor)
    document: dict[str, object] = {
        "inputs": inputs,
        **choices.object(("id", "outputs", "parameters"), _VALUES),
    }
    if choices.flag():
        parameters = choices.object(_PARAMETERS, _VALUES)
        document["outputs"] = [{"name": choices.of(_NAMES), "parameters": parameters}]
    head = _damaged(choices, as_json(document))
    return head + binary, choices.of((len(head), len(head), None, 0, len(head) + 1))


def front_protobuf(data: bytes) -> None:
    message = protobuf(Choices(data))
    with bounded(len(message)):
        request = _coded(lambda: _request(message))
    if request is not None:
        assert pb.ModelInferRequest.FromString(request.SerializeToString()) == request
        _check_adapted(request)


def protobuf(choices: Choices) -> bytes:
    """Return a ``ModelInferRequest``, mostly."""
    if choices.below(4) == 1:
        return choices.rest()
    request = pb.ModelInferRequest(model_name=choices.of(("tensorrt_llm", "ensemble", "x", "")))
    request.id = choices.of(("", "7", "triton_final_response\x12\x02\x08\x01"))
    is_raw = choices.flag()
    for _ in range(1 + choices.below(3)):
        tensor = request.inputs.add(name=choices.of(_NAMES), datatype=choices.of(_MOST_TYPES))
        tensor.shape.extend(choices.some((1, 2, 0, -1, 1 << 20, (1 << 63) - 1), 3))
        if is_raw:
            request.raw_input_contents.append(choices.bytes(17))
        for _ in range(choices.below(3)):
            kind = choices.of(_CONTENTS)
            with suppress(*_UNFIT):
                getattr(tensor.contents, kind).append(_any_value(choices, kind, b"hi"))
        if choices.below(8) == 1:
            tensor.parameters[choices.of(_PARAMETERS)].string_param = "x"
    for _ in range(choices.below(3)):
        parameter = request.parameters[choices.of(_PARAMETERS)]
        kind = choices.of(parameter.DESCRIPTOR.fields).name
        with suppress(*_UNFIT):
            setattr(parameter, kind, _any_value(choices, kind, "x"))
    message = bytes(request.SerializeToString())
    return _damaged(choices, message) + choices.of((*[b""] * 15, *_TAILS))


def _any_value(choices: Choices, kind: str, text: str | bytes) -> object:
    """Return a value for a field of protobuf, which takes no boolean as a number."""
    value = choices.of((*NASTY_NUMBERS, True, text))
    return 1 if value is True and "bool" not in kind else value


def _damaged(choices: Choices, document: bytes) -> bytes:
    return choices.of(_DEEP) if choices.below(40) == 1 else choices.damaged(document)


def _coded(read: Callable[[], T]) -> T | None:
    """None if it is refused."""
    try:
        return read()
    except CodedError as exc:
        check_refusal(exc, "E1103|E1107")
        return None


def _check_values(request: Any, given: dict[str, Any]) -> None:
    """Triton gets the values that the client sent."""
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        values, expected = values_of(tensor.datatype, raw), _flattened(given[tensor.name])
        if tensor.datatype.startswith("FP"):
            assert len(values) == len(expected)
        else:
            assert values == expected, (tensor.name, values, expected)


def _flattened(value: object) -> list[object]:
    return [each for item in value for each in _flattened(item)] if isinstance(value, list) else [value]


def _check_adapted(request: Any) -> None:
    """Integers stay what they are, in the type of the model; once more changes nothing."""
    model = models().get(request.model_name)
    if model is None:
        return
    before = _integers(request)
    with bounded(request.ByteSize()):
        is_refused = _coded(lambda: adapt(request, model) or True) is None
    if is_refused:
        return
    check_wire(request.SerializeToString())
    assert before == _integers(request)
    again = pb.ModelInferRequest.FromString(request.SerializeToString())
    adapt(again, model)
    assert again == request


def _integers(request: Any) -> list[list[int]]:
    """Return the values of the inputs of integers, except of those that lie elsewhere or are cut."""
    found, raws = [], iter(request.raw_input_contents)
    for tensor in request.inputs:
        if "shared_memory_region" in tensor.parameters:
            continue
        raw = next(raws, b"")
        if tensor.datatype not in INTEGERS:
            continue
        kind = np.dtype(INTEGERS[tensor.datatype])
        if request.raw_input_contents:
            found.append(np.frombuffer(raw, kind).tolist() if len(raw) % kind.itemsize == 0 else [])
        else:
            kinds = ("int_contents", "int64_contents", "uint_contents", "uint64_contents")
            found.append([value for name in kinds for value in getattr(tensor.contents, name)])
    return found
