"""What all tests share: repeatable property tests, how much is run, the order of a parallel run."""

import asyncio
import gc
import inspect
import shutil
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import fast

# NOTE: a busy machine makes examples too slow for Hypothesis' taste; that says nothing of the code.
settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# NOTE: jsonschema compiles 38 grammars of this library when it is imported (1.5 s); no schema here uses them.
sys.modules.setdefault("rfc3987_syntax", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no large program")
    parser.addoption("--all", action="store_true", help="also tests marked `long`, and all random examples")
    parser.addoption(
        "--more", action="store_true", help="only the tests of which --all runs more than is usual"
    )


def pytest_configure(config: pytest.Config) -> None:
    fast.is_on = config.getoption("fast")
    fast.has_all = config.getoption("all") or config.getoption("more")
    if fast.is_on:
        fast.record_started_servers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    fast.check_started(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shutil.which("mpirun") is None:
        skipped = pytest.mark.skip(reason="no mpirun (Debian, Ubuntu: apt-get install openmpi-bin)")
        for item in items:
            if item.get_closest_marker("needs_mpirun"):
                item.add_marker(skipped)
    if config.getoption("more"):
        config.hook.pytest_deselected(items=fast.keep_more(items))
    elif not fast.has_all:
        config.hook.pytest_deselected(items=fast.shorten(items))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not is_slow(item))  # So that all processes end at the same time.


def is_slow(item: pytest.Item) -> bool:
    return any(mark.name in ("servers", "slow", "long") for mark in item.iter_markers())


def pytest_collection_finish() -> None:
    """Keep the tests' modules, which live to the end, out of each garbage collection."""
    gc.collect()
    gc.freeze()
