"""What `pytest --fast` runs: tests that start no large program, with few examples of each property.

The marker ``servers`` is set from the code: a test gets it if its function, one of its fixtures, or a
function of the tests that these call names one of ``STARTERS``. A test whose code does not show it is marked
by hand; a test that starts one of ``PROGRAMS`` and is not marked fails.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import settings

LEFT_OUT = ("servers", "slow", "engine_env", "needs_mpirun")
"""Markers of tests that `--fast` leaves out."""
MOST_EXAMPLES = 20
"""Of a property, with `--fast`."""
STARTERS = frozenset(
    {
        "Browser",
        "CogServer",
        "CogUnderTest",
        "Service",
        "TritonUnderTest",
        "cli",  # python -m cli
        "engine_python",
        "make_engine_environment",
        "perf",  # python -m perf
        "whole_stack",
    }
)
"""Names of classes, functions and modules, and words of commands."""
PROGRAMS = ("tritonserver", "cog.server.http", "chromium", "mpirun", "docker", "nix", "prometheus")
"""Names of files, or of modules after ``-m``, in a command that starts a server or another large program."""

_SERVER_FOLDERS = {"images", "clients"}
"""Every test in these starts one."""

# NOTE: the public decorator refuses a function that has settings already.
_HYPOTHESIS_SETTINGS = "_hypothesis_internal_use_settings"

_started: set[str] = set()


def mark_server_tests(items: Iterable[pytest.Item]) -> None:
    for item in items:
        is_in_folder = not _SERVER_FOLDERS.isdisjoint(item.path.parts)
        if is_in_folder or (isinstance(item, pytest.Function) and any(map(is_starter, _functions_of(item)))):
            item.add_marker("servers")


def keep_fast_tests(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep the fast tests in ``items``, with few examples each; returns the others."""
    left_out = [item for item in items if any(map(item.get_closest_marker, LEFT_OUT))]
    items[:] = (item for item in items if not any(map(item.get_closest_marker, LEFT_OUT)))
    for item in items:
        function = getattr(item, "function", None)
        chosen = getattr(function, _HYPOTHESIS_SETTINGS, None)
        if isinstance(chosen, settings) and chosen.max_examples > MOST_EXAMPLES:
            setattr(function, _HYPOTHESIS_SETTINGS, settings(chosen, max_examples=MOST_EXAMPLES))
    return left_out


def record_started_programs() -> None:
    """Record the programs that are started from now on."""
    start = subprocess.Popen.__init__

    def record_and_start(process: Any, args: Any, *more: Any, **options: Any) -> None:
        words = [args] if isinstance(args, (str, bytes, Path)) else args
        names = {Path(os.fsdecode(word)).name for word in words}
        _started.update(names.intersection(PROGRAMS))
        start(process, args, *more, **options)

    subprocess.Popen.__init__ = record_and_start  # type: ignore[method-assign, assignment]


def check_started(item: pytest.Item) -> None:
    """Fail if the test has started a server and is not marked."""
    started = ", ".join(sorted(_started))
    _started.clear()
    if started and not item.get_closest_marker("servers"):
        pytest.fail(f"this test starts {started}: mark it `servers`, or add what it calls to STARTERS")


def _functions_of(item: pytest.Function) -> Iterator[FunctionType]:
    """The test's own and its fixtures'."""
    functions = [item.function, *(each.func for each in _fixtures(item))]
    return (each for each in functions if isinstance(each, FunctionType))


def _fixtures(item: pytest.Function) -> Iterator[Any]:
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from definitions


@cache
def is_starter(function: FunctionType) -> bool:
    return bool(STARTERS.intersection(_names_used(function, set())))


def _names_used(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """The names in a function's code, and in that of the tests' functions and classes among them."""
    seen.add(function)
    for name in _names_in(function.__code__):
        yield name
        for called in _tests_functions(function.__globals__.get(name)):
            if called not in seen:
                yield from _names_used(called, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    """Names and words."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (each for each in constant if isinstance(each, str))


def _tests_functions(value: Any) -> list[FunctionType]:
    if not getattr(value, "__module__", "").startswith("tests."):
        return []
    values = vars(value).values() if isinstance(value, type) else [value]
    return [each for each in values if isinstance(each, FunctionType)]
