"""Servers that tests share. Tests that kill something start their own.

NOTE: imports stand in the fixtures: tests of engines run in the engine environment, which has no server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runner.paced_engine import PacedModel
    from tests.runner.servers import CogUnderTest, TritonUnderTest


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(scope="session")
def paced(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model

    return make_paced_model(tmp_path_factory.mktemp("paced") / "model", TOKENS_PER_SECOND)


@pytest.fixture(scope="session")
def triton(paced: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    """Triton on the paced engine. It must stay as it is: who kills something starts another."""
    from tests.runner.servers import TritonUnderTest

    server = TritonUnderTest(paced, tmp_path_factory.mktemp("triton"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def cog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogUnderTest]:
    """Yield the runner's Cog server on the paced engine's tar. It must stay as it is."""
    from tests.runner.api.apis import CHAT_TEMPLATE
    from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
    from tests.runner.servers import CogUnderTest, assert_ended

    folder = tmp_path_factory.mktemp("cog")
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    model = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    server = CogUnderTest(model, folder, CHAT_TEMPLATE=str(template))
    yield server
    server.close()
    assert_ended(server.triton_http_port)
