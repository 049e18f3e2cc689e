"""Requests on the wire: whatever protobuf would parse within the bounds passes, all else is one error."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from errors.triton_front import InvalidInference
from runner.triton_server.grpc_wire import MAX_FIELDS, MAX_NAME_BYTES, MAX_TYPED_BYTES, check_wire

names = st.text(max_size=20)


def message(
    name: str, shape: list[int], values: list[int], raw: bytes, parameters: dict[str, str]
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=name, id=name)
    tensor = request.inputs.add(name=name, datatype="INT32", shape=shape)
    tensor.contents.int_contents.extend(values)
    request.raw_input_contents.append(raw)
    request.outputs.add(name=name)
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    return request


int32 = st.integers(-(1 << 31), (1 << 31) - 1)
messages = st.builds(
    message,
    names,
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=8),
    st.lists(int32, max_size=50),
    st.binary(max_size=1000),
    st.dictionaries(names, names, max_size=4),
).map(lambda each: each.SerializeToString())


@given(messages)
def test_a_request_within_the_bounds_passes(data: bytes) -> None:
    check_wire(data)


def with_input(**fields: object) -> bytes:
    request = pb.ModelInferRequest(model_name="a")
    request.inputs.add(**fields)
    return request.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00" * (MAX_FIELDS + 1),
        b"\x2a\x00" * (MAX_FIELDS + 1),
        b"\x32\x02\x0a\x00" * (MAX_FIELDS // 2 + 1),
        b"\x3a\x00" * 2_000_000,
        b"\x22\x00" * 2_000_000,
        b"\x2a" + b"\x80\x89\x7a" + b"\x22\x00" * 1_000_000,
        b"\x28" * 10,
        b"\x0b" * 100,
        b"\xff" * 1000,
        pb.ModelInferRequest(model_name="a" * (MAX_NAME_BYTES + 1)).SerializeToString(),
        pb.ModelInferRequest(id="a" * (MAX_NAME_BYTES + 1)).SerializeToString(),
        with_input(name="a" * (MAX_NAME_BYTES + 1)),
        with_input(datatype="a" * 4_000_000),
        with_input(shape=[1 << 62] * 100_000),
        with_input(contents=pb.InferTensorContents(bytes_contents=[b""] * (MAX_TYPED_BYTES // 2 + 1))),
        with_input(contents=pb.InferTensorContents(int_contents=[1] * (MAX_TYPED_BYTES + 1))),
    ],
)
def test_what_would_take_much_memory_or_time_is_refused_at_once(data: bytes) -> None:
    start_s = time.process_time()
    with pytest.raises(InvalidInference, match="E1107"):
        check_wire(data)
    assert time.process_time() - start_s < 0.5


def test_a_prompt_of_128k_tokens_passes_in_every_form() -> None:
    check_wire(with_input(contents=pb.InferTensorContents(bytes_contents=[b"a" * 600_000])))
    check_wire(with_input(contents=pb.InferTensorContents(int_contents=[128_000] * 131_072)))
    request = pb.ModelInferRequest(raw_input_contents=[b"a" * 4_000_000])
    check_wire(request.SerializeToString())
