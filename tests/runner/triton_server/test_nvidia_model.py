"""Requests for, and answers of, models of other versions of NVIDIA's backend; and where such a Triton is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from errors.external_triton import UnfitTritonModel
from errors.requests import UnsupportedArgument
from errors.settings import InvalidSetting
from errors.triton import TritonMalformedEvent
from runner.engines.protocol.messages import Guide, Sampling, Submit
from runner.settings.triton_address import parse_external_triton
from runner.triton_server.nvidia_model import NvidiaModel, output_of
from tests.standins.nvidia_triton import config

ADDRESS = "gpu:8001"


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def model(**options: Any) -> NvidiaModel:
    return NvidiaModel.read(parsed(config(Path("record"), **options)), ADDRESS)


def tensors(request: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    message = pb.ModelInferRequest.FromString(request)
    return {
        each.name: (each.datatype, list(each.shape), raw)
        for each, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_each_tensor_has_the_type_and_the_shape_of_the_model() -> None:
    submit = Submit(0, [5, 6], 7, end_id=2, pad_id=3, sampling=Sampling(temperature=0.5, seed=9))
    found = tensors(model(request_output_len="TYPE_UINT32", input_lengths="TYPE_INT64").request(submit))
    assert found["input_ids"] == ("INT32", [1, 2], np.array([5, 6], np.int32).tobytes())
    assert found["request_output_len"] == ("UINT32", [1, 1], np.uint32(7).tobytes())
    assert found["input_lengths"] == ("INT64", [1, 1], np.int64(2).tobytes())
    assert found["temperature"] == ("FP32", [1, 1], np.float32(0.5).tobytes())
    assert found["random_seed"] == ("UINT64", [1, 1], np.uint64(9).tobytes())
    assert found["streaming"] == ("BOOL", [1, 1], b"\x01")


def test_what_no_client_asks_for_is_left_out_where_the_model_lacks_it() -> None:
    missing = dict.fromkeys(("input_lengths", "end_id", "pad_id", "exclude_input_in_output"), None)
    found = tensors(model(**missing).request(Submit(0, [5], 7, end_id=2, pad_id=3)))
    assert set(found) == {"input_ids", "request_output_len", "streaming"}
    assert "streaming" not in tensors(model(is_decoupled=False).request(Submit(0, [5], 7)))


def test_later_names_of_inputs_are_used_where_the_model_has_them() -> None:
    text = config(Path("record"), random_seed=None) + (
        'input { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }'
        'input { name: "min_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }'
    )
    later = NvidiaModel.read(parsed(text), ADDRESS)
    found = tensors(later.request(Submit(0, [5], 7, min_tokens=4, sampling=Sampling(seed=9))))
    assert (found["seed"][0], found["min_tokens"][0]) == ("UINT64", "INT32")


@pytest.mark.parametrize(
    ("name", "submit"),
    [
        ("runtime_top_k", Submit(0, [5], 7, sampling=Sampling(top_k=3))),
        ("min_length", Submit(0, [5], 7, min_tokens=3)),
        ("guided_decoding_guide_type", Submit(0, [5], 7, guide=Guide("json"))),
        ("lora_name", Submit(0, [5], 7, lora_name="mine")),
        ("return_log_probs", Submit(0, [5], 7, wants_log_probs=True)),
    ],
)
def test_what_a_client_asks_for_is_refused_where_the_model_lacks_it(name: str, submit: Submit) -> None:
    with pytest.raises(UnsupportedArgument, match=f"E1104 .*{name}"):
        model(runtime_top_k=None).request(submit)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"input_ids": None}, "has no input input_ids"),
        ({"request_output_len": None}, "has no input request_output_len"),
        ({"input_ids": "TYPE_STRING"}, "has BYTES as the type of input_ids"),
        ({"is_decoupled": False, "exclude_input_in_output": None}, "would repeat prompts"),
    ],
)
def test_a_model_that_does_not_fit_is_e1113(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnfitTritonModel, match=f"E1113 .*{problem}.*--triton-model"):
        model(**options)
    text = config(Path("record")).replace('name: "output_ids"', 'name: "text_output"')
    with pytest.raises(UnfitTritonModel, match="has no output output_ids"):
        NvidiaModel.read(parsed(text), ADDRESS)


def response(is_final: bool = False, **outputs: Any) -> Any:
    message = pb.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = is_final
    for name, array in outputs.items():
        is_text = array.dtype.kind == "S"
        message.outputs.add(name=name, datatype="BYTES" if is_text else array.dtype.name.upper())
        raw = (
            b"".join(len(each).to_bytes(4, "little") + each for each in array) if is_text else array.tobytes()
        )
        message.raw_output_contents.append(raw)
    return message


def test_new_tokens_come_without_what_fills_their_row() -> None:
    ids = np.array([[[5, 6, -1, -1]]], np.int32)
    assert output_of(response(output_ids=ids)).tokens == [5, 6]
    filled = np.array([[[5, 6, 2, 2]]], np.int32)
    assert output_of(response(output_ids=filled, sequence_length=np.array([[2]], np.int32))).tokens == [5, 6]
    # Of earlier versions, the length is that of the prompt and the text so far.
    assert output_of(response(output_ids=ids, sequence_length=np.array([[99]], np.int32))).tokens == [5, 6]
    assert output_of(response(is_final=True)).tokens == []
    last = output_of(response(output_ids=ids, finish_reason=np.array([b"stop"])))
    assert last.finish_reason == "stop"


def test_an_answer_without_tokens_is_e2104() -> None:
    with pytest.raises(TritonMalformedEvent, match="E2104"):
        output_of(response(text_output=np.array([b"hi"])))
    broken = response(output_ids=np.array([1], np.int32))
    del broken.raw_output_contents[:]
    with pytest.raises(TritonMalformedEvent, match="E2104"):
        output_of(broken)


@pytest.mark.parametrize(
    ("text", "address"),
    [("gpu:9", "gpu:9"), ("gpu", "gpu:8001"), ("10.0.0.7:8001", "10.0.0.7:8001"), ("[::1]:9", "[::1]:9")],
)
def test_the_address_of_a_triton(text: str, address: str) -> None:
    assert parse_external_triton(text, "tensorrt_llm").address == address


@pytest.mark.parametrize("text", ["", ":9", "gpu:0", "gpu:65536", "gpu:x", "http://gpu:8000", "a b", "::1"])
def test_an_address_that_is_none_is_e1006(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"E1006 .*--triton must be HOST:PORT"):
        parse_external_triton(text, "tensorrt_llm")
