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

_SEQUENCE_TOKENS = 512
"""Tokens of each sequence of a full batch, for which the cache has room."""
_LARGEST_BYTES = 4 << 30
_LARGEST_SHARE = 0.25
_GROUPS = ("memory.max", "memory/memory.limit_in_bytes")


def ram_here_bytes() -> int:
    """Return this machine's memory, or its container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_limit(Path("/sys/fs/cgroup") / name) for name in _GROUPS]
    return min([total, *filter(None, limits)])


@dataclass(frozen=True)
class CpuCache:
    """The KV cache of a model on a CPU, of ``num_tokens`` tokens."""

    num_tokens: int
    num_bytes: int


def cpu_cache(
    *,
    present_bytes: int,
    weight_bytes: int,
    token_bytes: int,
    value_bytes: int,
    max_tokens: int,
    batch_size: int = BATCH_SIZE,
) -> CpuCache:
    """Return the cache for a model of ``weight_bytes`` whose longest sequence has ``max_tokens``.

    It has room for the longest sequence, or for a full batch of shorter ones if that is more, as far as the
    machine's ``present_bytes`` allow. ``token_bytes``: a token's keys and values in all layers;
    ``value_bytes``: one number. Besides, the library has a mask of a step's tokens by the cache's.
    """
    of_token = token_bytes + STEP_TOKENS * value_bytes
    wanted = max(max_tokens, batch_size * min(max_tokens, _SEQUENCE_TOKENS))
    free_bytes = present_bytes - weight_bytes - PROGRAM_BYTES
    affordable_bytes = max(min(int(present_bytes * _LARGEST_SHARE), _LARGEST_BYTES, free_bytes), 0)
    pages = max(min(wanted, affordable_bytes // of_token) // PAGE_TOKENS, 1)
    return CpuCache(pages * PAGE_TOKENS, pages * PAGE_TOKENS * of_token)


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
