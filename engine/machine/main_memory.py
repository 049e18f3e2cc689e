"""Main memory: how much this machine has, and how much an engine takes of it without a GPU.

The engine makes its KV cache by these rules, and ``plan`` reports it by the same rules before a build.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROGRAM_BYTES = 1 << 30
"""Taken by torch, and by the runner's processes. Measured: 0.9 GiB."""
RUNNER_BYTES = 1 << 29
"""Taken by the runner's processes and those of an engine without torch."""
PAGE_TOKENS = 32
"""Small pages, because cached prefixes consist of whole pages."""
STEP_TOKENS = 512
"""A prompt is processed in parts of at most this many tokens, so that it does not delay others for long."""
BATCH_SIZE = 32
RETAINED_TOKENS = 8192
"""The KV cache keeps the prefixes of finished requests up to this many tokens."""

_FIXED_SEQUENCE_TOKENS = 512
"""Tokens of each sequence of a full batch, for which a cache that does not grow has room."""
_LARGEST_FIXED_BYTES = 4 << 30
_GROUPS = ("memory.max", "memory/memory.limit_in_bytes")


def ram_here_bytes() -> int:
    """Return this machine's memory, or its container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_limit(Path("/sys/fs/cgroup") / name) for name in _GROUPS]
    return min([total, *filter(None, limits)])


@dataclass(frozen=True)
class CpuCache:
    """The largest KV cache of a model on a CPU."""

    num_tokens: int
    num_bytes: int


def cpu_cache(
    *, present_bytes: int, weight_bytes: int, token_bytes: int, max_tokens: int, batch_size: int = BATCH_SIZE
) -> CpuCache:
    """Return the largest cache for a model of ``weight_bytes`` whose longest sequence has ``max_tokens``.

    It takes memory only as sequences grow. A full batch of the longest ones fits, unless that is more than
    half of the memory that the weights leave of ``present_bytes``. ``token_bytes``: a token's keys and values
    in all layers.
    """
    affordable_bytes = max(present_bytes - weight_bytes - PROGRAM_BYTES, 0) // 2
    return _cache(min(batch_size * max_tokens, affordable_bytes // token_bytes), token_bytes)


def fixed_cache(
    *, present_bytes: int, weight_bytes: int, token_bytes: int, max_tokens: int, batch_size: int = BATCH_SIZE
) -> CpuCache:
    """Return the cache of an engine without torch that does not grow.

    It has room for the longest sequence, or for a full batch of shorter ones if that is more, as far as a
    quarter of the memory, 4 GiB and what the weights leave allow.
    """
    wanted = max(max_tokens, batch_size * min(max_tokens, _FIXED_SEQUENCE_TOKENS))
    free_bytes = present_bytes - weight_bytes - RUNNER_BYTES
    affordable_bytes = max(min(present_bytes // 4, _LARGEST_FIXED_BYTES, free_bytes), 0)
    return _cache(min(wanted, affordable_bytes // token_bytes), token_bytes)


def _cache(num_tokens: int, token_bytes: int) -> CpuCache:
    pages = max(num_tokens // PAGE_TOKENS, 1)
    return CpuCache(pages * PAGE_TOKENS, pages * PAGE_TOKENS * token_bytes)


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
