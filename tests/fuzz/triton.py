"""A Triton that answers anything: tokens, or one of our errors."""

from __future__ import annotations

from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from runner.triton_server.front.models import NUMBERS
from runner.triton_server.nvidia_client import _read
from tests.fuzz.choices import NASTY_TEXTS, Choices
from tests.fuzz.refusal import check_refusal

_NAMES = ("output_ids", "output_ids", "sequence_length", "finish_reason", "x")
_TYPES = ("INT32", "INT32", "BYTES", *NUMBERS, "BF16", "")
_ERRORS = (
    *("", "", "", "E1002 PromptTooLong: x", "Prompt length (9) exceeds maximum input length (8)", "[" * 3000),
    "Prompt length (" + "9" * 5000 + ") exceeds maximum input length (8)",
)


def triton_answers(data: bytes) -> None:
    choices = Choices(data)
    response = pb.ModelStreamInferResponse(error_message=choices.of(_ERRORS))
    for _ in range(choices.below(4)):
        response.infer_response.outputs.add(name=choices.of(_NAMES), datatype=choices.of(_TYPES))
    for _ in range(choices.below(4)):
        response.infer_response.raw_output_contents.append(choices.bytes(17))
    if choices.flag():
        text = choices.of(NASTY_TEXTS).encode(errors="replace").decode()
        response.infer_response.parameters["triton_final_response"].string_param = text
    message = choices.damaged(response.SerializeToString())
    try:
        assert all(token >= 0 for token in _read(message).tokens)
    except CodedError as exc:
        check_refusal(exc, "E")
