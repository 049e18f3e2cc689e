"""Streams of Triton by gRPC (``ModelStreamInfer``)."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from perf.load.http import HttpClient
from perf.load.response import Response
from perf.load.targets.target import Workload
from perf.load.targets.triton import TritonTarget

_TYPES = {str: ("BYTES", np.object_), bool: ("BOOL", np.bool_), int: ("INT32", np.int32)}


class TritonGRPCTarget(TritonTarget):
    """Sends what TritonTarget sends, as tensors. Its responses read as the events that TritonTarget gets."""

    def __init__(self, address: str, model: str, workload: Workload) -> None:
        super().__init__(f"http://{address}", model, workload)
        self._address = address
        self._model = model

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        response = Response(200, {})
        async with InferenceServerClient(self._address) as client:
            try:
                async for result, error in client.stream_infer(self._requests()):
                    _add(response, {"error": str(error)} if error else _document(result))
            except (InferenceServerException, grpc.RpcError) as exc:
                _add(response, {"error": str(exc)})
        return [response]

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        inputs = [_tensor(name, value) for name, value in json.loads(self.request.body).items()]
        yield {"model_name": self._model, "inputs": inputs}


def _add(response: Response, document: dict[str, Any]) -> None:
    response.pieces.append((time.perf_counter(), b"data: %b\n\n" % json.dumps(document).encode()))


def _tensor(name: str, value: Any) -> InferInput:
    values = value if isinstance(value, list) else [value]
    datatype, dtype = _TYPES[type(values[0])]
    tensor = InferInput(name, [1, len(values)], datatype)
    return tensor.set_data_from_numpy(np.array([values], dtype))


def _document(result: Any) -> dict[str, Any]:
    arrays = {each.name: result.as_numpy(each.name).ravel() for each in result.get_response().outputs}
    texts = "".join(each.decode() for each in arrays.get("text_output", ()))
    ids = arrays.get("output_ids", np.array([], int)).tolist()
    return {"text_output": texts} if "text_output" in arrays else {"output_ids": ids}
