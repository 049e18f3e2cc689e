"""Requests to Triton as arrays: in a gRPC stream, whose responses come in order, or one by one."""

import queue
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import np_to_triton_dtype

from tests.runner.servers import HOST

Array = npt.NDArray[Any]


def _inputs(module: Any, tensors: dict[str, Array]) -> list[Any]:
    inputs = []
    for name, array in tensors.items():
        inputs.append(module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


class GrpcStream:
    def __init__(self, port: int) -> None:
        self._client = grpcclient.InferenceServerClient(url=f"{HOST}:{port}")
        self._responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._responses.put((result, error)))

    def send(
        self, model: str, *, request_id: str = "", outputs: Sequence[str] = (), **tensors: Array
    ) -> None:
        """Send a request for ``outputs``; none: all."""
        self._client.async_stream_infer(
            model,
            _inputs(grpcclient, tensors),
            outputs=[grpcclient.InferRequestedOutput(name) for name in outputs] or None,
            request_id=request_id,
            enable_empty_final_response=True,
        )

    def receive(self) -> tuple[dict[str, Any], bool]:
        """Return the outputs of the next response, and True if it is the last."""
        result, error = self._responses.get(timeout=300)
        if error is not None:
            raise error
        response = result.get_response()
        outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
        return outputs, response.parameters["triton_final_response"].bool_param

    def receive_all(self) -> list[dict[str, Any]]:
        responses, is_last = [], False
        while not is_last:
            outputs, is_last = self.receive()
            responses.append(outputs)
        return responses

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


class Unary:
    """Requests with one response each, over HTTP or gRPC."""

    def __init__(self, port: int, protocol: str = "grpc") -> None:
        self._module: Any = httpclient if protocol == "http" else grpcclient
        self._client = self._module.InferenceServerClient(url=f"{HOST}:{port}")

    def __call__(self, model: str, outputs: Sequence[str] = (), **tensors: Array) -> Any:
        asked = [self._module.InferRequestedOutput(name) for name in outputs] or None
        return self._client.infer(model, _inputs(self._module, tensors), outputs=asked)

    def close(self) -> None:
        self._client.close()
