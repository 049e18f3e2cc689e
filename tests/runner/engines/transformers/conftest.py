"""Models that the tests of the ``transformers`` engine share. Without torch none of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runner.engines.transformers.transformers_models import Served


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.runner.engines.transformers.transformers_models import llama, save_model

    return save_model(llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[Served]:
    from tests.runner.engines.transformers.transformers_models import serve

    with serve(directory) as served:
        yield served
