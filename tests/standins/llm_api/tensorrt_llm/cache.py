"""Stand-in for the library's cache of prompts' blocks, and its events as it serializes them.

A layer with a window of 64 tokens has events of its own, as in models with several windows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

_CAPACITY = 6
"""Blocks that the cache holds."""
_WINDOWS = (64, 4096)


class PrefixCache:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._block_tokens = config.get("tokens_per_block", 32)
        self._buffer = config.get("event_buffer_max_size", 0)
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._told: list[dict[str, Any]] = []
        self.events: deque[dict[str, Any]] = deque(maxlen=self._buffer)
        self._count = 0
        for window in _WINDOWS:
            self._tell({"type": "created", "num_blocks_per_cache_level": [_CAPACITY, 0]}, window)

    def take(self, ids: Sequence[int], salt: Hashable) -> int:
        """Take a prompt. Return how many of its tokens were in the cache."""
        size = self._block_tokens
        pieces = [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]
        keys = [hash((salt, *pieces[: at + 1])) & (1 << 64) - 1 for at in range(len(pieces))]
        found = next((at for at, key in enumerate(keys) if key not in self._blocks), len(keys))
        if new := keys[found:]:
            blocks = [self._stored(*each) for each in zip(new, pieces[found:], strict=True)]
            parent = keys[found - 1] if found else None
            for window in _WINDOWS:
                self._tell({"type": "stored", "parent_hash": parent, "blocks": blocks}, window)
        for key in keys:
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        if excess := max(len(self._blocks) - _CAPACITY, 0):
            removed = [self._blocks.popitem(last=False)[0] for _ in range(excess)]
            self._tell({"type": "removed", "block_hashes": removed}, _WINDOWS[-1])
        return min(found * size, len(ids) - 1)

    def flush(self) -> None:
        """Make the events readable: when a request has ended."""
        self.events.extend(self._told)
        self._told.clear()

    def _tell(self, data: dict[str, Any], window: int) -> None:
        self._told.append({"event_id": self._count, "data": data, "window_size": window})
        self._count += 1

    def _stored(self, key: int, tokens: Sequence[int]) -> dict[str, Any]:
        listed = [{"type": "unique_token", "token_id": each, "token_extra_id": 0} for each in tokens]
        level = {"cache_level": 0, "priority": 35}
        return {"type": "stored_block", "block_hash": key, "tokens": listed, **level}
