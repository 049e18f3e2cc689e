"""A simulated prefix cache, and its events as vLLM publishes them.

Its rules are vLLM's, except that it does not keep generated tokens. A prompt's full blocks of tokens are in
the cache once the prompt was submitted. The least recently used blocks leave it first. A prompt's last token
is always computed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from runner.engines.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Publisher

_BLOCK_TOKENS = 16


class PrefixCache:
    """Hashes of blocks, each of all tokens up to its end."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Blocks, the least recently used first. A block is used after those that continue it."""

    def take(self, ids: Sequence[int]) -> tuple[int, list[Event]]:
        """Take a prompt. Return how many of its tokens were found, and the events."""
        hashes = _block_hashes(ids)
        num_found = next((at for at, each in enumerate(hashes) if each not in self._blocks), len(hashes))
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        events: list[Event] = []
        if new := hashes[num_found:]:
            parent = hashes[num_found - 1] if num_found else None
            tokens = list(ids[num_found * _BLOCK_TOKENS : len(hashes) * _BLOCK_TOKENS])
            events.append(BlockStored(new, parent, tokens, _BLOCK_TOKENS))
        if (excess := len(self._blocks) - self._num_blocks) > 0:
            events.append(BlockRemoved([self._blocks.popitem(last=False)[0] for _ in range(excess)]))
        return min(num_found, (len(ids) - 1) // _BLOCK_TOKENS) * _BLOCK_TOKENS, events


class PublishedCache:
    """A cache whose events are published. Call it from one thread at a time."""

    block_tokens = _BLOCK_TOKENS
    num_blocks = 4096

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Initialize. ``config``: vLLM's ``kv_events_config``."""
        self._cache = PrefixCache(self.num_blocks)
        self._publisher = Publisher(config)
        self._publisher.publish([AllBlocksCleared()])  # For those that knew the cache before a restart.

    def take(self, ids: Sequence[int]) -> int:
        """Take a prompt. Return how many of its tokens were found."""
        num_tokens, events = self._cache.take(ids)
        if events:
            self._publisher.publish(events)
        return num_tokens


def _block_hashes(ids: Sequence[int]) -> list[int]:
    hashes = []
    digest = blake2b(digest_size=8)
    for end in range(_BLOCK_TOKENS, len(ids) + 1, _BLOCK_TOKENS):
        digest.update(array("Q", ids[end - _BLOCK_TOKENS : end]).tobytes())
        hashes.append(int.from_bytes(digest.digest(), "big"))
    return hashes
