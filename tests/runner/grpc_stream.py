"""A gRPC stream to Triton: requests go in as arrays, responses come out in order."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from tests.runner.servers import HOST


class GrpcStream:
    def __init__(self, port: int) -> None:
        self._client = grpcclient.InferenceServerClient(url=f"{HOST}:{port}")
        self._responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._responses.put((result, error)))

    def send(
        self,
        model: str,
        *,
        request_id: str = "",
        outputs: Sequence[str] = (),
        **tensors: npt.NDArray[Any],
    ) -> None:
        """Send a request for ``outputs``; none: all."""
        inputs = []
        for name, array in tensors.items():
            tensor = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        self._client.async_stream_infer(
            model,
            inputs,
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

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()
