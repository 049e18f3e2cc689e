"""A stand-in of Triton's Python backend, in which the slot's model runs without Triton.

It has what the model uses of ``triton_python_backend_utils``, and Triton's rules that crash a server if they
are broken: no response and no question after the last response. Import it before ``runner.slot``.
"""

from __future__ import annotations

import json
import queue
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

_LAST = 1
_DEADLINE_S = 240.0


class Tensor:
    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self._name = name
        self._array = array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array


class TritonError(Exception):
    CANCELLED = 1

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class InferenceResponse:
    def __init__(self, tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.error = error
        self._tensors = list(tensors)
        self.outputs = {tensor.name(): tensor.as_numpy().tolist() for tensor in tensors}

    def output_tensors(self) -> list[Tensor]:
        return list(self._tensors)

    def drop_tensors(self) -> None:
        """Drop them as Triton drops outputs that were not requested: without Python's lock."""
        dropped = [weakref.ref(each) for each in self._tensors]
        self._tensors.clear()
        assert all(each() is not None for each in dropped), "Triton would free them without Python's lock"


class MetricFamily:
    COUNTER = "counter"
    GAUGE = "gauge"

    def __init__(self, name: str, description: str, kind: str) -> None:
        pass

    def Metric(self, labels: dict[str, str]) -> SimpleNamespace:  # noqa: N802 - Triton's name
        return SimpleNamespace(increment=lambda by: None, set=lambda value: None)


class Client:
    """A client's request, and the sender of its responses."""

    def __init__(
        self, request_id: str, tensors: dict[str, npt.NDArray[Any]], parameters: dict[str, object]
    ) -> None:
        self._request_id = request_id
        self._parameters = parameters
        self._tensors = [Tensor(name, array) for name, array in tensors.items()]
        self._responses: queue.Queue[tuple[InferenceResponse, bool]] = queue.Queue()
        self._has_ended = False
        self.refuses = False
        """The first response can't be sent, as if Triton's library did not get a lock."""
        self.num_received = 0

    def request_id(self) -> str:
        return self._request_id

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def get_response_sender(self) -> Client:
        return self

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self._has_ended, "Triton would crash: it has freed the request"
        response.drop_tensors()
        if self.refuses and flags != _LAST:
            self.refuses = False
            raise RuntimeError("boost::interprocess::lock_exception")
        self._has_ended = flags == _LAST
        self._responses.put((response, self._has_ended))

    def receive(self) -> tuple[InferenceResponse, bool]:
        """Return the next response, and whether it is the last."""
        received = self._responses.get(timeout=_DEADLINE_S)
        self.num_received += 1
        return received

    def receive_all(self) -> list[dict[str, Any]]:
        """Return the outputs of all responses. Raises the error of the first that has one."""
        outputs, is_last = [], False
        while not is_last:
            response, is_last = self.receive()
            if response.error is not None:
                raise response.error
            outputs.append(response.outputs)
        return outputs

    def tokens(self) -> list[int]:
        """All output tokens of a request with one output."""
        return [token for each in self.receive_all() for token in each["output_ids"][0][0]]

    @property
    def has_more(self) -> bool:
        return not self._responses.empty()


class SlotUnderTest:
    """The slot's model. ``initialize`` blocks until there is an engine; close it."""

    def __init__(self, engine_socket: Path, *, is_decoupled: bool = True, **parameters: str) -> None:
        from runner.slot.model import TritonPythonModel

        self.model = TritonPythonModel()
        values = {"engine_socket": str(engine_socket), **parameters}
        config: dict[str, Any] = {
            "parameters": {name: {"string_value": value} for name, value in values.items()},
            "model_transaction_policy": {"decoupled": is_decoupled},
        }
        names = {"model_name": "tensorrt_llm", "model_version": "1"}
        self.model.initialize({"model_config": json.dumps(config), **names})

    def ask(
        self,
        *,
        request_id: str = "",
        parameters: dict[str, object] | None = None,
        refuses: bool = False,
        **tensors: Any,
    ) -> Client:
        """Send one request. Values that are no arrays are those of a request of one row."""
        types: dict[type, Any] = {bool: np.bool_, float: np.float32, int: np.int32, list: np.int32}
        arrays = {
            name: value if isinstance(value, np.ndarray) else np.array([value], types[type(value)])
            for name, value in tensors.items()
        }
        shaped = {name: each.reshape(len(each), -1) for name, each in arrays.items()}
        client = Client(request_id, shaped, parameters or {})
        client.refuses = refuses
        self.model.execute([client])
        return client

    def close(self) -> None:
        self.model.finalize()


def install() -> None:
    """Make it what ``import triton_python_backend_utils`` finds."""
    module: Any = ModuleType("triton_python_backend_utils")
    for kind in (InferenceResponse, MetricFamily, Tensor, TritonError):
        setattr(module, kind.__name__, kind)
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = _LAST
    sys.modules[module.__name__] = module


install()
