"""Drills: each process of a loaded server is killed or stopped. What do clients lose, and what stays behind?

``drills.EXPECTED`` says what clients may lose. No test depends on a time.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf.engines import paced_engine
from perf.servers import Stack, whole_stack
from tests.runner.long_runs.drills import (
    API_SERVER,
    EXPECTED,
    TOKENS_PER_SECOND,
    WORKER,
    Drill,
    files_in,
    left_behind,
)

pytestmark = pytest.mark.servers

CASES = [
    pytest.param(
        role,
        number,
        marks=() if number == signal.SIGKILL or role in ("engine server", API_SERVER) else pytest.mark.long,
    )
    for role in EXPECTED
    for number in (signal.SIGKILL, signal.SIGSTOP)
    if role != WORKER
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paced_engine(tmp_path_factory.mktemp("engine"), TOKENS_PER_SECOND)


@contextmanager
def tidy_stack(engine: Path, folder: Path) -> Iterator[Stack]:
    tmp = folder / "tmp"
    tmp.mkdir()
    settings = {"ENGINE_DIR": str(engine), "FAILURE_LIMIT": "99", "TMPDIR": str(tmp)}
    with whole_stack(folder, settings) as stack:
        files = files_in(folder)
        yield stack
    assert left_behind(stack, folder, files) == []


@pytest.fixture(scope="module")
def stack(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with tidy_stack(engine, tmp_path_factory.mktemp("drills")) as stack:
        yield stack


@pytest.mark.parametrize(("role", "number"), CASES)
async def test_a_process_that_ends_costs_no_more_than_its_own_streams_and_comes_back(
    stack: Stack, engine: Path, role: str, number: signal.Signals
) -> None:
    drill = Drill(stack, engine, role, number)
    await drill.run()
    assert drill.broken == []
    assert {each.api for each in drill.streams if each.error} == set(EXPECTED[role].loses)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
async def test_without_its_worker_the_server_ends_and_leaves_nothing(
    engine: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with tidy_stack(engine, tmp_path) as stack:
        drill = Drill(stack, engine, WORKER, number)
        await drill.run()
        assert drill.broken == []
