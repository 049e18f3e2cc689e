"""Events of the library's KV cache, published as vLLM publishes them (``KV_EVENTS``).

Only full blocks are published, because routers know no others. If layers have attention windows of several
sizes, only the events of the largest window are published: the blocks of the others leave the cache while the
prefix can still be used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from runner.engines.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Publisher

log = logging.getLogger("cog_triton.engine")


class KvEvents:
    """A publisher of the library's events. Call it from one thread."""

    def __init__(self, config: Mapping[str, Any], block_tokens: int) -> None:
        """Open the publisher. ``config``: vLLM's ``kv_events_config``. Raises ZMQError."""
        self._block_tokens = block_tokens
        self._publisher = Publisher(config)
        self._stored: set[int] = set()
        self._last_id: int | None = None
        self._largest_window = 0
        self.clear()  # For those that knew the cache before a restart.

    def clear(self) -> None:
        """Publish that the cache is empty, as far as is known."""
        self._stored.clear()
        self._publisher.publish([AllBlocksCleared()])

    def publish(self, event: Mapping[str, Any]) -> None:
        """Publish an event of the library's ``get_kv_cache_events_async``."""
        number = event["event_id"]
        if self._last_id is not None and number != self._last_id + 1:
            log.warning("TensorRT-LLM dropped KV events; raise kv_cache_config.event_buffer_max_size")
            self.clear()
        self._last_id = number
        data, window = event["data"], event.get("window_size") or 0
        if data["type"] == "created":
            self._largest_window = max(self._largest_window, window)
        elif window >= self._largest_window and (made := self._convert(data)) is not None:
            self._publisher.publish([made])

    def _convert(self, data: Mapping[str, Any]) -> Event | None:
        if data["type"] == "removed":
            hashes = [each for each in data["block_hashes"] if each in self._stored]
            self._stored.difference_update(hashes)
            return BlockRemoved(hashes) if hashes else None
        if data["type"] != "stored":  # A block moved to the host's memory and back can still be used.
            return None
        hashes, tokens = [], []
        for block in data["blocks"]:
            if len(block["tokens"]) != self._block_tokens:
                break
            hashes.append(block["block_hash"])
            tokens += [each["token_id"] for each in block["tokens"]]
        if not hashes:
            return None
        self._stored.update(hashes)
        return BlockStored(hashes, data["parent_hash"], tokens, self._block_tokens)
