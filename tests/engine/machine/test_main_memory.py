"""The KV cache of a transformers engine on a CPU fits the model and the machine."""

from __future__ import annotations

import pytest

from engine.machine.main_memory import PAGE_TOKENS, PROGRAM_BYTES, cpu_cache

GIB = 1 << 30
SMOLLM2 = {"weight_bytes": 538_000_000, "token_bytes": 46_080, "max_tokens": 8192}
LLAMA_8B = {"weight_bytes": 32 * GIB, "token_bytes": 262_144, "max_tokens": 131_072}


def tokens(present_gib: float, model: dict[str, int], batch_size: int = 32) -> int:
    cache = cpu_cache(present_bytes=int(present_gib * GIB), value_bytes=4, batch_size=batch_size, **model)
    assert cache.num_tokens % PAGE_TOKENS == 0
    assert cache.num_bytes == cache.num_tokens * (model["token_bytes"] + 4 * 512)
    return cache.num_tokens


@pytest.mark.parametrize(("batch_size", "num_tokens"), [(1, 8192), (32, 16_384), (64, 32_768)])
def test_it_holds_the_longest_sequence_or_a_full_batch_of_shorter_ones(
    batch_size: int, num_tokens: int
) -> None:
    assert tokens(256, SMOLLM2, batch_size) == num_tokens


def test_a_model_with_few_positions_has_a_cache_for_a_full_batch_of_its_longest_sequences() -> None:
    assert tokens(256, SMOLLM2 | {"max_tokens": 64}) == 32 * 64


def test_it_takes_no_more_than_the_machine_has_beside_the_weights() -> None:
    assert tokens(64, LLAMA_8B) * 264_192 <= 4 * GIB < (tokens(64, LLAMA_8B) + PAGE_TOKENS) * 264_192
    assert tokens(34, LLAMA_8B) * 264_192 + PROGRAM_BYTES + 32 * GIB <= 34 * GIB
    assert tokens(16, LLAMA_8B) == PAGE_TOKENS
