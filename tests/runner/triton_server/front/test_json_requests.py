"""Inference requests in JSON: their tensors, and what is refused."""

import json
import time
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from runner.triton_server.front.answers import values_of
from runner.triton_server.front.json_requests import generate_request, infer_request
from runner.triton_server.front.models import INTEGERS, MAX_RANK, Input, Model
from runner.triton_server.front.tensors import adapt

MODEL = Model(
    "ensemble",
    "1",
    {
        "text_input": Input("BYTES", (1,)),
        "max_tokens": Input("INT32", (1,)),
        "stop_words": Input("BYTES", (-1,)),
        "bad_words": Input("INT32", (2, -1)),
        "temperature": Input("FP32", (1,)),
        "stream": Input("BOOL", (1,)),
    },
    has_batch=True,
    is_ensemble=True,
    is_python=False,
)


def generate(**document: object) -> Any:
    return generate_request(json.dumps(document).encode(), MODEL, "")


def infer(**document: object) -> Any:
    return infer_request(json.dumps(document).encode(), None, "ensemble", "")[0]


def tensors(request: Any) -> dict[str, tuple[list[int], list[Any]]]:
    return {
        each.name: (list(each.shape), values_of(each.datatype, raw))
        for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "given", "shape", "values"),
    [
        ("text_input", "hä", [1, 1], ["hä"]),
        ("text_input", ["a"], [1, 1], ["a"]),
        ("text_input", [["a"]], [1, 1], ["a"]),
        ("max_tokens", 5, [1, 1], [5]),
        ("max_tokens", [[5]], [1, 1], [5]),
        ("stop_words", "a", [1, 1], ["a"]),
        ("stop_words", ["a", "b"], [1, 2], ["a", "b"]),
        ("stop_words", [["a", "b"]], [1, 2], ["a", "b"]),
        ("stop_words", [], [1, 0], []),
        ("bad_words", [1, 2, 3, 4], [1, 2, 2], [1, 2, 3, 4]),
        ("bad_words", [[1, 2], [3, 4]], [1, 2, 2], [1, 2, 3, 4]),
        ("bad_words", [[[1, 2], [3, 4]]], [1, 2, 2], [1, 2, 3, 4]),
        ("temperature", 1, [1, 1], [1.0]),
        ("stream", True, [1, 1], [True]),
    ],
)
def test_bare_and_nested_values_get_the_shape_of_the_model(
    name: str, given: object, shape: list[int], values: list[object]
) -> None:
    assert tensors(generate(**{name: given, "unknown": {"a": []}})) == {name: (shape, values)}


@pytest.mark.parametrize(
    "document",
    [
        {"text_input": 5},
        {"text_input": ["a", "b"]},
        {"text_input": [["a"], "b"]},
        {"text_input": [[[[[[[[["a"]]]]]]]]]},
        {"text_input": {"a": 1}},
        {"max_tokens": 1 << 31},
        {"max_tokens": -(1 << 31) - 1},
        {"max_tokens": 10**40},
        {"max_tokens": 1.5},
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"max_tokens": None},
        {"max_tokens": [1, 2]},
        {"bad_words": [1, 2, 3]},
        {"bad_words": [[1, 2, 3], [1]]},
        {"temperature": "1"},
        {"stream": 1},
        {"parameters": {"a": []}},
        {"parameters": []},
        {"id": "a" * 1025},
    ],
)
def test_other_values_are_refused_by_name(document: dict[str, object]) -> None:
    with pytest.raises(CodedError) as raised:
        generate(**document)
    assert raised.value.code in ("E1103", "E1107")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"text_input":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b'{"text_input":' + b"[" * 2_000_000,
        b'{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"x":[' + b"{}," * 1_300_000 + b"{}]}",
        b'{"x":[' + b'{"a":0},' * 500_000 + b"{}]}",
        b'{"x":[' + b"1," * 2_000_000 + b"1]}",
        b'{"max_tokens":' + b"9" * 100_000 + b"}",
        b'{"temperature":1e999}',
        b'{"text_input":"\\ud800"}',
        b'{"text_input":"\xff"}',
        b'{"\\ud800":1}',
        json.dumps({str(number): 1 for number in range(300)}).encode(),
    ],
)
def test_bodies_that_cost_much_or_are_no_json_are_refused_at_once(body: bytes) -> None:
    start_s = time.process_time()
    with pytest.raises(CodedError) as raised:
        generate_request(body, MODEL, "")
    assert raised.value.code in ("E1103", "E1107")
    assert len(str(raised.value)) < 500
    assert time.process_time() - start_s < 0.5


def test_a_prompt_of_600_kb_passes_even_if_it_is_code() -> None:
    text = 'x = [{"a": (1, 2, 3)}, [4, 5]]\n' * 20_000
    assert tensors(generate(text_input=text))["text_input"] == ([1, 1], [text])


@pytest.mark.parametrize("datatype", [*INTEGERS])
@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("shape", [[1], [1, 1], [1] * MAX_RANK])
def test_integers_of_any_type_and_bare_shapes_become_the_models(
    datatype: str, shape: list[int], *, is_typed: bool
) -> None:
    request = pb.ModelInferRequest(model_name="ensemble")
    tensor = request.inputs.add(name="max_tokens", datatype=datatype, shape=shape)
    kind = "uint" if datatype.startswith("U") else "int"
    wide = f"{kind}64_contents" if "64" in datatype else f"{kind}_contents"
    if is_typed:
        getattr(tensor.contents, wide).append(100)
    else:
        request.raw_input_contents.append(np.array([100], INTEGERS[datatype]).tobytes())
    adapt(request, MODEL)
    assert (tensor.datatype, list(tensor.shape)) == ("INT32", [1, 1] if shape == [1] else shape)
    if is_typed:
        assert list(tensor.contents.int_contents) == [100]
    else:
        assert request.raw_input_contents[0] == np.array([100], "<i4").tobytes()


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT64", 1 << 31), ("INT64", -(1 << 40)), ("UINT32", 1 << 31)]
)
@pytest.mark.parametrize("is_typed", [False, True])
def test_integers_that_the_model_can_not_hold_are_refused(
    datatype: str, value: int, *, is_typed: bool
) -> None:
    request = pb.ModelInferRequest(model_name="ensemble")
    tensor = request.inputs.add(name="max_tokens", datatype=datatype, shape=[1, 1])
    if is_typed:
        getattr(tensor.contents, "uint_contents" if datatype == "UINT32" else "int64_contents").append(value)
    else:
        request.raw_input_contents.append(np.array([value], INTEGERS[datatype]).tobytes())
    with pytest.raises(CodedError, match="E1103"):
        adapt(request, MODEL)


def test_integers_that_no_type_holds_together_are_refused() -> None:
    request = pb.ModelInferRequest(model_name="ensemble")
    tensor = request.inputs.add(name="max_tokens", datatype="UINT64", shape=[1, 2])
    tensor.contents.int64_contents.append(-1)
    tensor.contents.uint64_contents.append((1 << 64) - 1)
    with pytest.raises(CodedError, match="E1103"):
        adapt(request, MODEL)


@pytest.mark.parametrize("raw", [[], [b"\x00\x01\x02"]])
def test_raw_contents_that_do_not_fit_are_refused(raw: list[bytes]) -> None:
    request = pb.ModelInferRequest(model_name="ensemble", raw_input_contents=[*raw])
    request.inputs.add(name="max_tokens", datatype="INT64", shape=[1, 1])
    request.inputs.add(name="temperature", datatype="FP32", shape=[1, 1])
    if not raw:
        request.raw_input_contents.append(b"12345678")
        request.inputs.add(name="max_tokens", datatype="INT64", shape=[1, 1])
        request.inputs.add(name="max_tokens", datatype="INT64", shape=[1, 1])
    with pytest.raises(CodedError, match=r"E110[37]"):
        adapt(request, MODEL)


def test_too_many_texts_in_a_tensor_are_refused() -> None:
    for shape in ([1, 70_000], [1 << 31] * 200):
        request = pb.ModelInferRequest(model_name="ensemble")
        request.inputs.add(name="stop_words", datatype="BYTES", shape=shape)
        with pytest.raises(CodedError, match="E1103"):
            adapt(request, MODEL)


def test_binary_tensors_follow_the_json() -> None:
    text = b"\x02\x00\x00\x00hi"
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(text)}}]}).encode()
    request, _ = infer_request(head + text, len(head), "ensemble", "1")
    assert tensors(request) == {"text_input": ([1, 1], ["hi"])}
    for size in (len(text) + 1, -1):
        with pytest.raises(CodedError, match="E1103"):
            infer(inputs=[tensor | {"parameters": {"binary_data_size": size}}])
    for length in (len(head) + 1, len(head) + len(text) + 1, 0, 10):
        with pytest.raises(CodedError, match=r"E110[37]"):
            infer_request(head + text, length, "ensemble", "1")
