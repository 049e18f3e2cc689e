"""What a model of Triton takes: the types and shapes of its inputs, from its configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from errors.requests import InvalidTensor
from errors.triton_front import UnknownTritonModel
from runner.triton_server.front.triton import RefusedByTriton, Triton

INTEGERS = {
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
}
"""numpy's types by Triton's."""
NUMPY_TYPES = {**INTEGERS, "BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}

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
    inputs: dict[str, Input]
    has_batch: bool
    is_ensemble: bool
    is_python: bool

    def shape_of(self, name: str, given: list[int]) -> list[int]:
        """The shape of an input whose value in JSON is nested so: [] for a bare value.

        Raises InvalidTensor (E1103).
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
        """Raises TritonUnavailable."""
        await self._triton.connect()
        try:
            index = pb.RepositoryIndexResponse.FromString(
                await self._triton.ask(
                    "RepositoryIndex", pb.RepositoryIndexRequest(ready=True).SerializeToString()
                )
            )
            for each in index.models:
                await self.read(each.name)
        except RefusedByTriton:
            return  # A model was unloaded meanwhile: it is unknown.

    async def read(self, name: str) -> None:
        request = pb.ModelConfigRequest(name=name).SerializeToString()
        answer = await self._triton.ask("ModelConfig", request)
        self._models[name] = _model(pb.ModelConfigResponse.FromString(answer).config)

    def find(self, name: str) -> Model | None:
        return self._models.get(name)

    def get(self, name: str) -> Model:
        """Raises UnknownTritonModel (E1108)."""
        if (model := self._models.get(name)) is None:
            raise UnknownTritonModel(model=name[:200], served=", ".join(sorted(self._models)))
        return model

    def forget(self) -> None:
        self._models.clear()

    @property
    def are_loaded(self) -> bool:
        return bool(self._models)


def _model(config: Any) -> Model:
    inputs = {}
    for each in config.input:
        name = (
            type(each).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[each.data_type].name
        )
        inputs[each.name] = Input(_PROTOBUF_NAMES.get(name, name.removeprefix("TYPE_")), tuple(each.dims))
    return Model(
        config.name,
        inputs,
        config.max_batch_size > 0,
        config.platform == "ensemble",
        config.backend == "python",
    )
