"""Triton's gRPC API as a client has it."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.runner.servers import HOST, TritonUnderTest


@pytest.fixture(scope="module")
def stub(triton: TritonUnderTest) -> Iterator[Any]:
    with grpc.insecure_channel(f"{HOST}:{triton.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
