"""Tests that start servers are known by their code."""

from __future__ import annotations

import subprocess
from types import FunctionType

import pytest

from tests import fast


def starts_cog_by_a_command() -> None:
    subprocess.run(["python", "-m", "cli", "serve"], check=True)


def calls_what_starts_cog() -> None:
    (lambda: starts_cog_by_a_command())()


def imports_it_late() -> None:
    from tests.runner.servers import CogUnderTest

    print(CogUnderTest)


class Server:
    def open(self) -> None:
        imports_it_late()


def makes_an_object_that_starts_it() -> None:
    Server().open()


def starts_a_small_program() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    ("function", "is_marked"),
    [
        (starts_cog_by_a_command, True),
        (calls_what_starts_cog, True),
        (imports_it_late, True),
        (makes_an_object_that_starts_it, True),
        (starts_a_small_program, False),
    ],
)
def test_a_starter_is_found_wherever_the_code_names_it(function: FunctionType, is_marked: bool) -> None:
    assert fast.is_starter(function) is is_marked


def test_a_server_that_the_code_does_not_show_fails_an_unmarked_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)  # Undone at the end.
    fast.record_started_programs()
    subprocess.run(["true", "/some/where/tritonserver"], check=True)
    with pytest.raises(pytest.fail.Exception, match="starts tritonserver: mark it"):
        fast.check_started(request.node)
