"""A test that starts a server fails unless it is marked ``servers``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import fast


@pytest.mark.parametrize(
    ("command", "servers"),
    [
        (["/opt/bin/tritonserver", "--http-port=1"], {"tritonserver"}),
        ([b"with_parent.py", b"1", b"python", b"-m", b"runner.cog_server"], {"runner.cog_server"}),
        (["python", "-m", "cli", "serve", "engine.tar"], {"serve"}),
        (["python", "-c", "from runner.cog_server.launch import CogServer\nCogServer()"], {"CogServer"}),
        (["python", "-m", "cli", "inspect", "engine.tar"], set()),
        (["true"], set()),
    ],
)
def test_a_server_is_known_by_its_command(command: list[str], servers: set[str]) -> None:
    assert fast.servers_in(command) == servers


def test_an_unmarked_test_that_starts_a_server_fails(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)  # Undone at the end.
    fast.record_started_servers()
    subprocess.run([sys.executable, "-c", "", "/some/where/tritonserver"], check=True)
    with pytest.raises(pytest.fail.Exception, match="starts tritonserver: mark it"):
        fast.check_started(request.node)


def test_few_values_of_a_parameter_are_fast() -> None:
    each = fast.few([1, (2, 3), 4], num_fast=2)
    assert [value.values for value in each] == [(1,), (2, 3), (4,)]
    assert [[mark.name for mark in value.marks] for value in each] == [[], [], ["slow"]]


@pytest.mark.parametrize(
    ("is_on", "has_all", "num_examples"), [(False, True, 25), (False, False, 7), (True, False, 3)]
)
def test_a_fast_run_makes_fewer_random_examples(
    is_on: bool, has_all: bool, num_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "is_on", is_on)
    monkeypatch.setattr(fast, "has_all", has_all)
    assert fast.num_examples(25) == num_examples
