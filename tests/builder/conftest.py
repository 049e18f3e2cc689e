from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.builder import tiny_model
from tests.builder.hub_server import HubServer, Repository
from tests.engine.samples import write_files

MODEL_ID = "acme/tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, no token of this machine's user, and no waiting between tries."""
    monkeypatch.setenv("COG_TRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "COG_UPLOAD_URL", "ENGINE_TAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    if find_spec("urllib3"):  # the engine environment has none, and its tests download nothing
        monkeypatch.setattr("builder.weights.downloads.RETRY_DELAY_S", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def repository(hub: HubServer) -> Repository:
    hub.repositories[MODEL_ID] = Repository(
        tiny_model.files(), lfs={"model.safetensors", "pytorch_model.bin"}
    )
    return hub.repositories[MODEL_ID]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Provide the tiny model as a folder, beside where configs are written."""
    return write_files(tmp_path / "model", tiny_model.files())
