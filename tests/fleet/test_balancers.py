"""Balancers and routers of other projects in front of two servers: none loses what it need not lose.

The balancers have the configurations of ``deploy/balancers``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from errors.settings import MissingRequirement
from perf.routers import ROUTERS, router
from tests.fleet.balancers import BALANCERS, CONFIGURATIONS, balancer
from tests.fleet.servers import NAMES, TOKENS_PER_SECOND, Fleet, needs_environment

pytestmark = [
    pytest.mark.long,
    pytest.mark.servers,
    needs_environment,
]
HAS_CHECKS = {"haproxy", "envoy", "caddy", "smg"}
"""Routers that notice a server which does not answer: nginx has no active checks."""


class Routers(dict[str, str]):
    """URL by name. Debian's are left out where they are not installed."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def routers(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routers]:
    found = Routers()
    with ExitStack() as exits:
        for name in (*BALANCERS, "smg"):
            folder = tmp_path_factory.mktemp(name)
            options = ["--policy", "round_robin"] if name in ROUTERS else []
            start = router if name in ROUTERS else balancer
            try:
                found[name] = exits.enter_context(start(name, fleet.urls, folder, *options)).url
            except MissingRequirement:
                continue
        yield found


async def test_texts_are_the_servers_and_a_session_stays_on_its_server(
    fleet: Fleet, routers: Routers
) -> None:
    async with fleet.whole(routers.values()):
        for name in routers.keys() & BALANCERS.keys():
            asked = [
                fleet.ask(routers[name], session=f"session {each}") for each in range(16) for _ in range(3)
            ]
            answers = await asyncio.gather(*asked)
            assert fleet.lost(answers) == {}
            servers = [{answer.server for answer in answers[at : at + 3]} for at in range(0, len(answers), 3)]
            # HAProxy and Envoy send a part of a session elsewhere when its server has more than its share.
            assert sum(len(each) == 1 for each in servers) >= len(servers) // 2, (name, servers)
            assert set.union(*servers) == set(NAMES), name


async def test_tokens_come_as_they_are_made(fleet: Fleet, routers: Routers) -> None:
    async with fleet.whole(routers.values()):
        for url in routers.values():
            await fleet.wait_until_unbuffered(url)


async def test_a_stopped_server_gets_no_more_requests_and_then_does_again(
    fleet: Fleet, routers: Routers
) -> None:
    async with fleet.whole(routers.values()):
        urls = [routers[name] for name in routers.keys() & HAS_CHECKS]
        fleet.signal("B", signal.SIGSTOP)
        try:
            await asyncio.gather(*(fleet.wait_until_avoided(url, "B") for url in urls))
        finally:
            fleet.signal("B", signal.SIGCONT)
        await asyncio.gather(*map(fleet.wait_until_used, urls))


async def test_a_server_that_is_drained_loses_nothing(fleet: Fleet, routers: Routers) -> None:
    async with fleet.whole(routers.values()):
        urls = list(routers.values())
        streams = await fleet.load(urls, tokens=3 * TOKENS_PER_SECOND)
        fleet.signal("B", signal.SIGTERM)
        later = []
        while not fleet.is_gone():
            later += await fleet.ask_all(urls)
        later += await fleet.ask_all(urls)
        answers = await asyncio.gather(*streams)
        assert {answer.server for answer in answers} == set(NAMES)
        assert fleet.lost([*answers, *later]) == {}
        assert later[-1].server == "A"


async def test_a_server_that_is_killed_takes_no_new_requests_with_it(fleet: Fleet, routers: Routers) -> None:
    async with fleet.whole(routers.values()):
        urls = list(routers.values())
        streams = await fleet.load(urls, tokens=4 * TOKENS_PER_SECOND)
        fleet.signal("B", signal.SIGKILL)
        later = await fleet.ask_all(urls)
        answers = await asyncio.gather(*streams)
        later += await fleet.ask_all(urls)
        assert {answer.server for answer in answers} == set(NAMES)
        # No router can go on with a stream; each client is told.
        cut = [answer for answer in answers if not fleet.is_whole(answer)]
        assert {answer.server for answer in cut} == {"B"}
        assert not [answer for answer in cut if answer.is_done and not answer.error]
        assert fleet.lost(later) == {}
        assert {answer.server for answer in later} == {"A"}


def test_examples_check_what_is_false_while_an_engine_is_down() -> None:
    """``/health`` is true as long as the process runs."""
    texts = {path.name: path.read_text() for path in CONFIGURATIONS.iterdir()}
    assert {file for file, _ in BALANCERS.values()} <= texts.keys()
    assert not any("/health" in text for text in texts.values())
    assert all("/ready" in texts[file] for name, (file, _) in BALANCERS.items() if name in HAS_CHECKS)
    assert all("/ready" in command for command in ROUTERS.values())
