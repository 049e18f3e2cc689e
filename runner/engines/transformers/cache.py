"""The KV cache on a CPU: it takes memory as sequences grow, and gives it back when they end.

The library allocates its whole cache at the start. Here the cache is a range of addresses, to which the
system gives memory page by page when they are first written. Its size is only a bound.
"""

import mmap
from itertools import islice
from typing import Any

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import CacheAllocator

from engine.machine.main_memory import RETAINED_TOKENS, STEP_TOKENS


class GrowingCache(PagedAttentionCache):  # type: ignore[misc]
    """The library's paged cache, with memory for what sequences hold and for the latest prefixes.

    Free sectors are a stack, of which the lowest ``_num_untouched`` have no memory.
    """

    cache_tensor: torch.Tensor
    device: torch.device

    def __init__(self, device: torch.device, **arguments: Any) -> None:
        # On the device "meta" the library computes all sizes and allocates nothing.
        super().__init__(device=torch.device("meta"), **arguments)
        self.device = device
        num_bytes = self.cache_tensor.nbytes
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.cache_tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        for allocator in self.cache_allocators.values():
            without_trash = num_bytes - 2 * self.bytes_per_sector
            allocator.register_cache_tensor(
                self.bytes_per_sector, without_trash, self.cache_tensor, self.pool
            )
        self._num_untouched = self.pool.num_free_sectors
        self._num_kept_free = STEP_TOKENS // self.tokens_per_sector

    def can_store_request_tokens(self, *arguments: Any, **named: Any) -> bool:
        can_store: bool = super().can_store_request_tokens(*arguments, **named)
        self._num_untouched = min(self._num_untouched, self.pool.num_free_sectors)
        return can_store

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        for allocator in self.cache_allocators.values():
            # Prefixes are evicted in the order of this: a block is of no use without those before it.
            allocator.block_table.get(request_id, []).reverse()
        super().free_blocks(request_id, no_cache)
        for allocator in self.cache_allocators.values():
            self._evict_oldest(allocator)
        self.pool.try_to_free_sectors()
        self._give_back()

    def _evict_oldest(self, allocator: CacheAllocator) -> None:
        """Evict the prefixes of finished requests beyond ``RETAINED_TOKENS``, or half of a smaller cache."""
        ledger = allocator.ledger
        most = min(RETAINED_TOKENS // allocator.tokens_per_page, allocator.num_blocks // 2)
        evicted = list(islice(ledger.cached_blocks, max(len(ledger.cached_blocks) - most, 0)))
        for block in evicted:
            del ledger.cached_blocks[block]
            del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
        self.pool.free_blocks(allocator.index, evicted)

    def _give_back(self) -> None:
        """Return the memory of free sectors to the system, except that of the next ones to be used."""
        free = self.pool.free_sectors
        surplus = free[self._num_untouched : max(len(free) - self._num_kept_free, self._num_untouched)]
        for sector in surplus:
            start = -(-sector * self.bytes_per_sector // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (sector + 1) * self.bytes_per_sector // mmap.PAGESIZE * mmap.PAGESIZE
            if start < end:
                self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)
        self._num_untouched += len(surplus)
