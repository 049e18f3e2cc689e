"""Inputs that a model of Triton takes: the types and shapes of its inputs, from its configuration."""

import math
import struct
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from errors.requests import InvalidTensor
from errors.triton import TritonUnavailable
from errors.triton_front import UnknownTritonModel
from runner.triton_server.grpc_client.triton import RefusedByTriton, Triton

INTEGERS = {
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
}
"""Codes of numpy and of ``struct`` for Triton's types."""
MAX_TEXTS = 1 << 16
"""Limit of the texts in one tensor: each becomes an object in Triton's Python models."""
TEXT_LENGTH = struct.Struct("<I")
"""The length before each text of a tensor in binary form."""
NUMBERS = {**INTEGERS, "BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d"}

MAX_RANK = 8
"""The most dimensions of a tensor."""

_PROTOBUF_NAMES = {"TYPE_STRING": "BYTES"}


@dataclass(frozen=True)
class Input:
    """``dims``: without the batch dimension; -1 is any."""

    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    name: str
    version: str
    inputs: dict[str, Input]
    has_batch: bool
    is_ensemble: bool
    is_python: bool

    def shape_of(self, name: str, given: list[int]) -> list[int]:
        """Return the shape of an input by the nesting of its value in JSON. Raises InvalidTensor (E1103).

        ``given``: the lengths of the nested lists, [] for a bare value.
        """
        dims = list(self.inputs[name].dims)
        if self.has_batch and len(given) == len(dims) + 1 and given[0] == 1:
            given = given[1:]
        if len(given) < len(dims):  # Bare, or a flat list for a matrix.
            rows = math.prod(max(each, 1) for each in dims[:-1])
            count = math.prod(given)
            given = [*(max(each, 1) for each in dims[:-1]), count // rows] if count % rows == 0 else given
        if len(given) != len(dims) or any(
            want not in (-1, has) for want, has in zip(dims, given, strict=True)
        ):
            raise InvalidTensor(name=name, expected=f"of shape {dims}", value=f"of shape {given}")
        return [1, *given] if self.has_batch else given


class Models:
    """The models that Triton has now; read again after each connection."""

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._models: dict[str, Model] = {}

    async def load(self) -> None:
        """Read the models from Triton. Raises TritonUnavailable."""
        await self._triton.connect()
        self._models = {}
        try:
            request = pb.RepositoryIndexRequest(ready=True).SerializeToString()
            index = pb.RepositoryIndexResponse.FromString(await self._triton.ask("RepositoryIndex", request))
            models = [await self._read(each.name, each.version) for each in index.models]
        except RefusedByTriton as exc:
            raise TritonUnavailable(reason=f"its models can't be read ({exc})") from exc
        self._models = {each.name: each for each in models}

    async def _read(self, name: str, version: str) -> Model:
        request = pb.ModelConfigRequest(name=name).SerializeToString()
        answer = await self._triton.ask("ModelConfig", request)
        return model_of(pb.ModelConfigResponse.FromString(answer).config, version)

    def find(self, name: str) -> Model | None:
        return self._models.get(name)

    def get(self, name: str, version: str) -> Model:
        """Find a model. ``version``: blank if the client leaves it open. Raises E1108."""
        model = self._models.get(name)
        if model is None or version not in ("", model.version):
            called = f"{name}/versions/{version}" if version else name
            remedy = f"use one of: {', '.join(sorted(self._models))}"
            raise UnknownTritonModel(model=called, remedy=remedy)
        return model

    @property
    def are_loaded(self) -> bool:
        return bool(self._models)


def model_of(config: Any, version: str = "") -> Model:
    """Read a ``ModelConfig``."""
    inputs = {}
    for each in config.input:
        name = (
            type(each).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[each.data_type].name
        )
        inputs[each.name] = Input(_PROTOBUF_NAMES.get(name, name.removeprefix("TYPE_")), tuple(each.dims))
    return Model(
        config.name,
        version,
        inputs,
        config.max_batch_size > 0,
        config.platform == "ensemble",
        config.backend == "python",
    )
