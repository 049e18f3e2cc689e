"""Main memory: how much this machine has, and how much a transformers engine takes of it without a GPU.

The engine makes its KV cache by these rules, and a plan tells it before.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROGRAM_BYTES = 1 << 30
"""Taken by torch, and by the runner's processes. Measured: 0.9 GiB."""
PAGE_TOKENS = 32
"""Small pages, because cached prefixes consist of whole pages."""
STEP_TOKENS = 512
"""A prompt is processed in parts of at most this many tokens, so that it does not delay others for long."""
BATCH_SIZE = 32
RETAINED_TOKENS = 8192
"""The KV cache keeps the prefixes of finished requests up to this many tokens."""

_GROUPS = ("memory.max", "memory/memory.limit_in_bytes")


def ram_here_bytes() -> int:
    """Return this machine's memory, or its container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_limit(Path("/sys/fs/cgroup") / name) for name in _GROUPS]
    return min([total, *filter(None, limits)])


@dataclass(frozen=True)
class CpuCache:
    """The largest KV cache of a model on a CPU: it takes memory only as sequences grow."""

    num_tokens: int
    num_bytes: int


def cpu_cache(
    *,
    present_bytes: int,
    weight_bytes: int,
    token_bytes: int,
    max_tokens: int,
    batch_size: int = BATCH_SIZE,
) -> CpuCache:
    """Return the largest cache for a model of ``weight_bytes`` whose longest sequence has ``max_tokens``.

    A full batch of the longest sequences fits, unless that is more than half of the memory that the weights
    leave of ``present_bytes``. ``token_bytes``: a token's keys and values in all layers.
    """
    affordable_bytes = max(present_bytes - weight_bytes - PROGRAM_BYTES, 0) // 2
    pages = max(min(batch_size * max_tokens, affordable_bytes // token_bytes) // PAGE_TOKENS, 1)
    return CpuCache(pages * PAGE_TOKENS, pages * PAGE_TOKENS * token_bytes)


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
