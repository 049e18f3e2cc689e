"""The simulated prefix cache of the paced engine, and the events that it publishes."""

import json
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runner.engines.kv_events import BlockRemoved, BlockStored, Event
from runner.engines.paced.adapter import load
from runner.engines.paced.prefix_cache import PrefixCache
from runner.engines.protocol.messages import Submit
from runner.engines.protocol.options import KV_EVENTS_OPTION
from runner.settings.settings import load_settings
from tests.runner.engines.kv_subscriber import Subscriber, replayed
from tests.runner.engines.listening import make_paced_directory
from tests.runner.engines.recording_sink import RecordingSink
from tests.runner.servers import wait_until

BLOCK = 16
PROMPT = list(range(3 * BLOCK + 5))


@pytest.fixture
def sockets() -> Iterator[str]:
    """Provide a short path: that of a socket has at most 107 characters."""
    with TemporaryDirectory() as folder:
        yield f"ipc://{folder}"


def hashes_after(events: list[Event], blocks: set[int]) -> None:
    """Change the blocks of a cache as a router does."""
    for event in events:
        if isinstance(event, BlockStored):
            assert event.parent_block_hash is None or event.parent_block_hash in blocks
            assert blocks.isdisjoint(event.block_hashes)
            assert len(event.token_ids) == BLOCK * len(event.block_hashes)
            blocks.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert blocks.issuperset(event.block_hashes)
            blocks.difference_update(event.block_hashes)


def test_what_earlier_prompts_began_with_is_found_in_whole_blocks() -> None:
    cache = PrefixCache(100)
    assert cache.take(PROMPT)[0] == 0
    assert cache.take(PROMPT) == (3 * BLOCK, [])
    assert cache.take(PROMPT[: 3 * BLOCK])[0] == 2 * BLOCK, "the last token is computed"
    assert cache.take([*PROMPT[:40], 7, *PROMPT[41:]])[0] == 2 * BLOCK
    assert cache.take(PROMPT[1:])[0] == 0
    assert cache.take([1] * (BLOCK - 1)) == (0, [])


def test_new_blocks_are_told_with_their_tokens_and_what_they_continue() -> None:
    cache = PrefixCache(100)
    ((first,), (second,)) = (cache.take(ids)[1] for ids in (PROMPT[:20], PROMPT))
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent_block_hash, first.token_ids) == (None, PROMPT[:BLOCK])
    assert second.parent_block_hash == first.block_hashes[-1]
    assert second.token_ids == PROMPT[BLOCK : 3 * BLOCK]
    assert len(second.block_hashes) == 2


def test_the_least_recently_used_leave_the_ends_of_prompts_first() -> None:
    cache = PrefixCache(5)
    other = [each + 1000 for each in PROMPT]
    cache.take(PROMPT)
    _, (stored, removed) = cache.take(other)
    assert isinstance(stored, BlockStored)
    assert isinstance(removed, BlockRemoved)
    assert len(removed.block_hashes) == 1
    assert cache.take(other)[0] == 3 * BLOCK
    assert cache.take(PROMPT)[0] == 2 * BLOCK


def test_a_router_that_follows_the_events_knows_what_is_found() -> None:
    cache, known, chance = PrefixCache(40), set[int](), random.Random(0)
    prefixes = [[chance.randrange(100) for _ in range(6 * BLOCK)] for _ in range(8)]
    for own in range(500):
        prompt = chance.choice(prefixes)[: chance.randrange(6 * BLOCK)] + [1000 + own] * chance.randrange(
            1, 40
        )
        expected = min(len(known.intersection(_hashes(prompt))), (len(prompt) - 1) // BLOCK) * BLOCK
        num_tokens, events = cache.take(prompt)
        assert num_tokens == expected
        hashes_after(events, known)
        assert len(known) <= 40


def _hashes(prompt: list[int]) -> list[int]:
    (event,) = PrefixCache(1000).take(prompt)[1] or [BlockStored([], None, [], BLOCK)]
    assert isinstance(event, BlockStored)
    return event.block_hashes


def test_subscribers_get_events_as_vllm_sends_them_and_can_have_them_again(
    tmp_path: Path, sockets: str
) -> None:
    endpoints = {"KV_EVENTS": f"{sockets}/events", "KV_EVENTS_REPLAY": f"{sockets}/replay"}
    config = load_settings({**endpoints, "KV_EVENTS_TOPIC": "kv@a@m"}).kv_events_config
    assert config is not None
    sink = RecordingSink()
    directory = make_paced_directory(tmp_path / "engine", 0)
    engine = load(directory, sink, {KV_EVENTS_OPTION: json.dumps(config)})
    assert (engine.ready.kv_block_tokens, engine.ready.num_kv_blocks) == (BLOCK, 4096)
    subscriber = Subscriber(config["endpoint"], "kv@")
    numbers = count(1)

    def ask(ids: list[int]) -> int:
        number = next(numbers)
        engine.submit(Submit(number, input_ids=ids, max_tokens=2))
        assert sink.wait(number)[1] == "length"
        return dict(sink.cache_hits)[number]

    assert ask(PROMPT) == 0
    assert ask(PROMPT) == 3 * BLOCK
    before = replayed(config["replay_endpoint"], 0, b"kv@a@m")
    assert before.pop(0) == [{"type": "AllBlocksCleared"}]
    ((stored,),) = before.values()
    assert stored.pop("block_hashes")
    assert stored == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": PROMPT[: 3 * BLOCK],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    # A subscription takes effect some time after it was asked for.
    news = iter(range(10_000, 10**9, BLOCK))
    wait_until(lambda: ask(list(range(start := next(news), start + BLOCK))) == 0 and subscriber.has_news())
    events = subscriber.events()
    assert events[0]["type"] == "BlockStored"
    assert subscriber.topics == {b"kv@a@m"}
    (number,) = subscriber.numbers
    assert replayed(config["replay_endpoint"], number, b"kv@a@m")[number] == events
    subscriber.close()
    engine.close()
