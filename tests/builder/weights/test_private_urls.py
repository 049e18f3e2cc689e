"""What a caller names by URL is fetched from the internet alone, unless the operator allows more."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builder.build import build
from engine.download.address import ALLOW_VARIABLE
from errors.download import AddressRefused
from tests.builder.cog_server import CogServer
from tests.engine.tar_server import TarServer

CONFIG: dict[str, object] = {
    "engine": "paced",
    "model_path": "examples/tiny/model",
    "paced": {"tokens_per_second": 0},
}


@pytest.fixture
def inner() -> Iterator[TarServer]:
    with TarServer(yaml.safe_dump(CONFIG).encode()) as server:
        yield server


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    """Provide a builder as it is delivered: nothing allowed."""
    folder = tmp_path_factory.mktemp("strict")
    with CogServer(folder, {ALLOW_VARIABLE: "", "COG_TRITON_CACHE": str(folder / "cache")}) as server:
        yield server


def _data(keys: dict[str, object], *, is_base64: bool) -> str:
    text = yaml.safe_dump(keys)
    if is_base64:
        return "data:application/yaml;base64," + base64.b64encode(text.encode()).decode()
    return "data:," + "".join(f"%{byte:02x}" for byte in text.encode())


@pytest.mark.servers
def test_a_config_url_into_our_network_is_refused_and_not_asked_for(
    strict: CogServer, inner: TarServer
) -> None:
    answer = strict.build(config=inner.url)
    assert "E1327 AddressRefused" in answer["error"]
    assert inner.asked == []
    assert strict.is_ready()


@pytest.mark.servers
def test_a_config_may_come_in_the_request_but_its_model_not_from_our_network(
    strict: CogServer, inner: TarServer
) -> None:
    keys: dict[str, object] = {"engine": "transformers", "model_tar_url": inner.url}
    for is_base64 in (True, False):
        assert strict.build(config=_data(CONFIG, is_base64=is_base64))["status"] == "succeeded"
        answer = strict.build(config=_data(keys, is_base64=is_base64))
        assert "E1327 AddressRefused" in answer["error"]
    assert inner.asked == []
    for config in ("data:", "data:nothing", "data:;base64,§§"):
        assert "E1005 InvalidInput" in strict.build(config=config)["error"]


def test_who_builds_by_hand_may_use_any_url(inner: TarServer, tmp_path: Path) -> None:
    build(inner.url, tmp_path / "engine.tar", report=lambda line: None)
    with pytest.raises(AddressRefused):
        build(inner.url, tmp_path / "other.tar", only_public=True, report=lambda line: None)
