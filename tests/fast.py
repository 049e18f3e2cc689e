"""How much a run tests: `--fast` starts no large program, `--all` leaves nothing out."""

import inspect
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

LEFT_OUT = ("servers", "slow", "engine_env", "needs_mpirun", "long")
"""Markers of tests that `--fast` leaves out. Without `--all`, `long` is left out always."""
MOST_EXAMPLES = 100
MOST_FAST_EXAMPLES = 20
"""Limits of a property's examples, without `--all`."""
FEWER = 4
FEWER_FAST = 10
"""A test that makes its own random examples makes this many times fewer, without `--all`."""
PROGRAMS = frozenset(
    {
        "builder.cog_server",
        "chromium",
        "cog.server.http",
        "docker",
        "mpirun",
        "nix",
        "prometheus",
        "runner.cog_server",
        "tritonserver",
    }
)
"""Names of files, or of modules after ``-m``, that a test may not start unless it is marked ``servers``."""
CLI_SERVERS = frozenset({"demo", "generate", "serve"})
"""Commands of ``python -m cli`` that start servers."""

# NOTE: the public decorator refuses a function that has settings already.
_SETTINGS = "_hypothesis_internal_use_settings"

is_on = False
has_all = False
_started: set[str] = set()


def few(values: Iterable[Any], num_fast: int = 1) -> list[Any]:
    """``values`` to parametrize (tuples: of several parameters); `--fast` takes the first ``num_fast``."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    fast, slow = each[:num_fast], each[num_fast:]
    return [*starmap(pytest.param, fast), *(pytest.param(*value, marks=pytest.mark.slow) for value in slow)]


def num_examples(count: int) -> int:
    """Return how many random examples a test makes that makes ``count`` with `--all`."""
    return count if has_all else -(-count // (FEWER_FAST if is_on else FEWER))


def shorten(items: list[pytest.Item]) -> list[pytest.Item]:
    """Remove from ``items`` what this run leaves out, and return it. Give the others few examples."""
    names = LEFT_OUT if is_on else ("long",)
    most = MOST_FAST_EXAMPLES if is_on else MOST_EXAMPLES
    left_out = _remove(items, lambda item: any(mark.name in names for mark in item.iter_markers()))
    for item in items:
        if _max_examples(item) > most:
            function = item.function
            setattr(function, _SETTINGS, settings(getattr(function, _SETTINGS), max_examples=most))
    return left_out


def keep_more(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep the tests that are longer with `--all`. Remove the others from ``items``, and return them."""
    return _remove(items, lambda item: not (item.get_closest_marker("long") or _has_more_examples(item)))


def _remove(items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]) -> list[pytest.Item]:
    left_out = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    return left_out


def _max_examples(item: pytest.Item) -> int:
    chosen = getattr(getattr(item, "function", None), _SETTINGS, None)
    return chosen.max_examples if isinstance(chosen, settings) else 0


def _has_more_examples(item: pytest.Item) -> bool:
    function = getattr(item, "function", None)
    names = function.__code__.co_names if inspect.isfunction(function) else ()
    return _max_examples(item) > MOST_EXAMPLES or num_examples.__name__ in names


def record_started_servers() -> None:
    """Record the servers that are started from now on."""
    start = subprocess.Popen.__init__

    def record_and_start(process: Any, args: Any, *more: Any, **options: Any) -> None:
        _started.update(servers_in([args] if isinstance(args, (str, bytes, Path)) else args))
        start(process, args, *more, **options)

    subprocess.Popen.__init__ = record_and_start


def servers_in(command: Sequence[Any]) -> set[str]:
    """Return the PROGRAMS and CLI_SERVERS that a command starts, also by Python code after ``-c``."""
    words = [os.fsdecode(word) for word in command]
    found = PROGRAMS.intersection(Path(word).name for word in words)
    if "cli" in words:
        found |= CLI_SERVERS.intersection(words)
    return found | {"CogServer" for word in words if "CogServer(" in word}


def check_started(item: pytest.Item) -> None:
    """Fail if the test has started a server and is not marked."""
    started = ", ".join(sorted(_started))
    _started.clear()
    if started and not item.get_closest_marker("servers"):
        pytest.fail(f"this test starts {started}: mark it `servers`")
