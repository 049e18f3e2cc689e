"""The endpoints that manage Triton, opened by TRITON_MANAGEMENT."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import HOST, TritonUnderTest

pytestmark = pytest.mark.servers

ASKED = {"text_input": "What is machine learning?", "max_tokens": 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    folder: Path = tmp_path_factory.mktemp("management")
    server = TritonUnderTest(make_paced_model(folder / "model", 100), folder, TRITON_MANAGEMENT="true")
    yield server
    server.close()


def test_what_is_opened_is_bounded_and_answered_by_triton(server: TritonUnderTest) -> None:
    """The models stay: Triton loads and unloads none while it runs."""
    models = {each["name"] for each in server.post("/v2/repository/index", {}).json()}
    assert models > {"ensemble", "tensorrt_llm"}
    nested: list[object] = []
    for _ in range(40):
        nested = [nested]
    refused = server.post("/v2/repository/models/ensemble/load", {"parameters": nested})
    assert (refused.status_code, refused.json()["error"][:5]) == (400, "E1107")
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        index = stub.RepositoryIndex(pb.RepositoryIndexRequest())
        assert {each.name for each in index.models} == models
        for action in ("load", "unload"):
            refused = server.post(f"/v2/repository/models/ensemble/{action}", {})
            assert "not allowed" in refused.json()["error"]
        with pytest.raises(grpc.RpcError, match="not allowed"):
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="ensemble"))
        assert stub.LogSettings(pb.LogSettingsRequest()).settings
    assert server.post("/v2/models/ensemble/generate", ASKED).status_code == 200
