"""What is known to end or to take over Triton 2.51 does not reach it (docs/security.md names each CVE)."""

import gzip
import json
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.hostile import request, send, status_of
from tests.runner.servers import ENSEMBLE, TritonUnderTest
from tests.runner.triton_server.front.running import ASKED, inference

pytestmark = pytest.mark.servers

BODY = json.dumps(ASKED).encode()
REGION = "triton_python_backend_shm_region_1"


def with_shape(shape: list[int], datatype: str = "BYTES") -> Any:
    asked = inference()
    asked.inputs[0].shape[:] = shape
    asked.inputs[0].datatype = datatype
    return asked


def with_outputs(count: int, **parameters: int) -> Any:
    asked = inference()
    for _ in range(count):
        output = asked.outputs.add(name="text_output")
        for name, value in parameters.items():
            output.parameters[name].int64_param = value
    return asked


def shared(part: str) -> Any:
    asked = with_outputs(1)
    tensor = (asked.inputs if part == "input" else asked.outputs)[0]
    tensor.parameters["shared_memory_region"].string_param = REGION
    tensor.parameters["shared_memory_byte_size"].int64_param = 1 << 40
    return asked


def named(model: str) -> Any:
    asked = inference()
    asked.model_name = model
    return asked


CALLS: dict[str, tuple[str, Any, str]] = {
    "CVE-2025-23326, a size beyond 64 bits": (
        *("ModelInfer", with_shape([1 << 62, 8], "FP64")),
        "E1103",
    ),
    "CVE-2025-23327, texts beyond 64 bits": ("ModelInfer", with_shape([1 << 62, 1 << 62]), "E1103"),
    "CVE-2025-23321, a dimension of 0": ("ModelInfer", with_shape([0, 0]), "E1103"),
    "CVE-2025-23328, more than is sent": ("ModelInfer", with_shape([1, 1000]), "E1103"),
    "CVE-2026-24173, a negative dimension": ("ModelInfer", with_shape([1, -1]), "E1103"),
    "CVE-2025-33211, many dimensions": ("ModelInfer", with_shape([1] * 900), "E1103"),
    "CVE-2026-24146, many outputs": ("ModelInfer", with_outputs(5000), "E1107"),
    "CVE-2025-23331, many classes": ("ModelInfer", with_outputs(1, classification=1 << 62), "E1103"),
    "CVE-2025-23319, memory of the backend, in": ("ModelInfer", shared("input"), "E1103"),
    "CVE-2025-23334, memory of the backend, out": ("ModelInfer", shared("output"), "E1103"),
    "CVE-2026-24209, a path as a name": ("ModelInfer", named("../../../etc/passwd"), "E1108"),
    "CVE-2025-23316, a command as a name": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="a; touch /tmp/taken"),
        "E1109",
    ),
    "CVE-2025-23329, registering its memory": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="a", key=REGION, byte_size=64),
        "E1109",
    ),
}


@pytest.mark.parametrize(("method", "message", "code"), CALLS.values(), ids=CALLS)
def test_a_call_that_triton_does_not_survive_is_refused(
    triton: TritonUnderTest, stub: Any, method: str, message: Any, code: str
) -> None:
    with pytest.raises(grpc.RpcError, match=code):
        getattr(stub, method)(message)
    _check_serves(triton)


HTTP: dict[str, bytes] = {
    "CVE-2026-24264, compressed": request(
        f"{ENSEMBLE}/generate", gzip.compress(b" " * 3_000_000 + BODY), "Content-Encoding: gzip"
    ),
    "CVE-2026-24175, a header": request(
        f"{ENSEMBLE}/infer", BODY, "Inference-Header-Content-Length: 18446744073709551616"
    ),
    "CVE-2025-23325, nested": request(f"{ENSEMBLE}/infer", b'{"inputs":' + b"[" * 100_000),
    "CVE-2026-24208, a path": request("/v2/models/..%2f..%2fetc/config", b"", method="GET"),
}


@pytest.mark.parametrize("data", HTTP.values(), ids=HTTP)
def test_a_request_that_triton_does_not_survive_is_refused(triton: TritonUnderTest, data: bytes) -> None:
    assert status_of(send(triton.http_port, data)) in (400, 404, 415)
    _check_serves(triton)


def _check_serves(triton: TritonUnderTest) -> None:
    assert triton.post(f"{ENSEMBLE}/generate", ASKED).status_code == 200
    assert triton.service.stack.triton.restarts == 0
