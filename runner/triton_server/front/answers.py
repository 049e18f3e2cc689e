"""Answers of the front: the status and body of an error, and an inference as JSON."""

import struct
from typing import Any, cast

import msgspec

from errors import find_in_text
from errors.api import InvalidAPIKey, ReceivingTooMuch, UnsupportedHTTP
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineStartFailed, QueueFull, RankEnded
from errors.requests import UnsupportedArgument
from errors.triton import ServerStopping, TritonTimeout, TritonUnavailable
from errors.triton_front import (
    ClosedEndpoint,
    RequestTooLarge,
    TooManyBytes,
    TooManyInferences,
    UnknownTritonModel,
)
from runner.triton_server.front.models import NUMBERS, TEXT_LENGTH
from runner.triton_server.grpc_wire import (
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)

_UNAVAILABLE = (TritonUnavailable, EngineCrashed, EngineStartFailed, RankEnded, ServerStopping, TooManyBytes)
_STATUSES: dict[type[CodedError], tuple[int, int]] = {
    InvalidAPIKey: (401, UNAUTHENTICATED),
    ClosedEndpoint: (403, PERMISSION_DENIED),
    UnknownTritonModel: (404, NOT_FOUND),
    RequestTooLarge: (413, RESOURCE_EXHAUSTED),
    TooManyInferences: (429, RESOURCE_EXHAUSTED),
    QueueFull: (429, RESOURCE_EXHAUSTED),
    ReceivingTooMuch: (429, RESOURCE_EXHAUSTED),
    UnsupportedArgument: (400, UNIMPLEMENTED),
    TritonTimeout: (504, UNAVAILABLE),
    **dict.fromkeys(_UNAVAILABLE, (503, UNAVAILABLE)),
}
"""HTTP's and gRPC's status of these errors. Others are 400 if the caller can fix them (E1...), else 500."""


def statuses_of(error: CodedError) -> tuple[int, int]:
    """Return HTTP's and gRPC's status for an error."""
    if isinstance(error, UnsupportedHTTP):
        return cast(int, error.facts["status"]), UNIMPLEMENTED
    default = (400, INVALID_ARGUMENT) if error.code.startswith("E1") else (500, INTERNAL)
    return _STATUSES.get(type(error), default)


def status_of_text(text: str) -> int:
    """Return HTTP's status for an error text of Triton, which may contain a coded error."""
    error = find_in_text(text)
    return statuses_of(error)[0] if error is not None else 400


def failure_of(response: Any) -> tuple[int, str]:
    """Return gRPC's status and message for an error of a ``ModelStreamInferResponse``."""
    text = response.error_message
    error = find_in_text(text)
    if error is not None:
        return statuses_of(error)[1], text
    return INTERNAL if response.infer_response.parameters else INVALID_ARGUMENT, text


def error_body(text: str) -> bytes:
    """Write an error as Triton does."""
    return msgspec.json.encode({"error": text})


def generate_body(response: Any) -> bytes:
    """Write a ``ModelInferResponse`` in the JSON of Triton's generate extension, with sorted keys."""
    document = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if not name.startswith("triton_")
    }
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        values = values_of(output.datatype, raw)
        document[output.name] = values[0] if len(values) == 1 else values
    return msgspec.json.encode(document, order="sorted")


def values_of(datatype: str, raw: bytes) -> list[Any]:
    """Read the values of a tensor in Triton's binary form."""
    if datatype != "BYTES":
        code = NUMBERS[datatype]
        return list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    texts, position = [], 0
    while position < len(raw):
        (length,) = TEXT_LENGTH.unpack_from(raw, position)
        position += TEXT_LENGTH.size + length
        texts.append(raw[position - length : position].decode(errors="replace"))
    return texts
