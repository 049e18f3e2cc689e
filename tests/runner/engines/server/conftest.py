"""Engine servers for the tests of this folder, by the kind of their engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import make_paced_directory
from tests.runner.engines.server.brittle import with_kinds

StartServer = Callable[..., EngineServerUnderTest]
SharedServer = Callable[..., EngineServerUnderTest]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """Return the module's engine server of a kind and rate: a new one if the last has ended."""
    servers: dict[tuple[str, int], EngineServerUnderTest] = {}

    def share(kind: str, tokens_per_second: int = 1000) -> EngineServerUnderTest:
        key = kind, tokens_per_second
        if key not in servers:
            folder = tmp_path_factory.mktemp(kind)
            directory = make_paced_directory(folder / "model", tokens_per_second)
            servers[key] = EngineServerUnderTest(kind, directory, {}, folder, environment=with_kinds(folder))
        elif servers[key].process.poll() is not None:
            servers[key].start()
        return servers[key]

    yield share
    for server in servers.values():
        server.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Provide a function that starts an ``EngineServerUnderTest`` of a kind, to be stopped at the end."""
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
