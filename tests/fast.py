"""What `pytest --fast` runs: tests that start no large program, with few examples of each property."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

LEFT_OUT = ("servers", "slow", "engine_env", "needs_mpirun")
"""Markers of tests that `--fast` leaves out."""
MOST_EXAMPLES = 20
"""Of a property, with `--fast`."""
FEWER = 10
"""A test that makes its own random examples makes this many times fewer with `--fast`."""
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
_HYPOTHESIS_SETTINGS = "_hypothesis_internal_use_settings"

is_on = False
_started: set[str] = set()


def few(values: Iterable[Any], num_fast: int = 1) -> list[Any]:
    """``values`` to parametrize (tuples: of several parameters); `--fast` takes the first ``num_fast``."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    fast, slow = each[:num_fast], each[num_fast:]
    return [*starmap(pytest.param, fast), *(pytest.param(*value, marks=pytest.mark.slow) for value in slow)]


def num_examples(count: int) -> int:
    """How many random examples a test makes that makes ``count`` without `--fast`."""
    return -(-count // FEWER) if is_on else count


def keep_fast_tests(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep the fast tests in ``items``, with few examples each; returns the others."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if any(mark.name in LEFT_OUT for mark in item.iter_markers()):
            left_out.append(item)
            continue
        kept.append(item)
        function = getattr(item, "function", None)
        chosen = getattr(function, _HYPOTHESIS_SETTINGS, None)
        if isinstance(chosen, settings) and chosen.max_examples > MOST_EXAMPLES:
            setattr(function, _HYPOTHESIS_SETTINGS, settings(chosen, max_examples=MOST_EXAMPLES))
    items[:] = kept
    return left_out


def record_started_servers() -> None:
    """Record the servers that are started from now on."""
    start = subprocess.Popen.__init__

    def record_and_start(process: Any, args: Any, *more: Any, **options: Any) -> None:
        _started.update(servers_in([args] if isinstance(args, (str, bytes, Path)) else args))
        start(process, args, *more, **options)

    subprocess.Popen.__init__ = record_and_start  # type: ignore[method-assign, assignment]


def servers_in(command: Sequence[Any]) -> set[str]:
    """What of PROGRAMS and CLI_SERVERS a command starts, also by Python code after ``-c``."""
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
