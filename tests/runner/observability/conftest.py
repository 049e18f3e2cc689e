"""A runner that is watched, for all tests that leave it serving."""

from collections.abc import Iterator

import pytest

from tests.runner.observability.watched import Watched, watched_runner


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_runner(tmp_path_factory.mktemp("watched")) as watched:
        yield watched
        assert watched.lines()  # To the last, each is JSON.
