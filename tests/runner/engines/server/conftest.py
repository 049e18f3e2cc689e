"""Engine servers for the tests of this folder, by the kind of their engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import make_paced_directory
from tests.runner.engines.server.brittle import with_kinds

StartServer = Callable[..., EngineServerUnderTest]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts an engine server of a kind, as ``EngineServerUnderTest`` does, and stops it at the end."""
    servers: list[EngineServerUnderTest] = []
    environment = with_kinds(tmp_path)

    def start(
        kind: str,
        options: dict[str, str] | None = None,
        *,
        tokens_per_second: object = 1000,
        variables: dict[str, str] | None = None,
        **more: Any,
    ) -> EngineServerUnderTest:
        directory = make_paced_directory(tmp_path / "engine", tokens_per_second)
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        server = EngineServerUnderTest(
            kind, directory, options or {}, folder, environment=environment | (variables or {}), **more
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
