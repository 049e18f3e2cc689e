"""The largest KV cache of an engine on a CPU, by model, batch and machine."""

import pytest

from engine.machine.main_memory import PAGE_TOKENS, PROGRAM_BYTES, cpu_cache, fixed_cache

GIB = 1 << 30
SMOLLM2 = {"weight_bytes": 538_000_000, "token_bytes": 46_080, "max_tokens": 8192}
LLAMA_8B = {"weight_bytes": 32 * GIB, "token_bytes": 262_144, "max_tokens": 131_072}


def tokens(present_gib: float, model: dict[str, int], batch_size: int = 32) -> int:
    cache = cpu_cache(present_bytes=int(present_gib * GIB), batch_size=batch_size, **model)
    assert cache.num_tokens % PAGE_TOKENS == 0
    assert cache.num_bytes == cache.num_tokens * model["token_bytes"]
    return cache.num_tokens


@pytest.mark.parametrize("batch_size", [1, 32, 64])
def test_a_full_batch_of_the_longest_sequences_fits(batch_size: int) -> None:
    assert tokens(256, SMOLLM2, batch_size) == 8192 * batch_size


def test_it_is_at_most_half_of_what_the_weights_leave() -> None:
    for present in (34, 64):
        left = present * GIB - 32 * GIB - PROGRAM_BYTES
        most = tokens(present, LLAMA_8B)
        assert most * 262_144 <= left / 2 < (most + PAGE_TOKENS) * 262_144
    assert tokens(16, LLAMA_8B) == PAGE_TOKENS


def test_a_cache_that_does_not_grow_has_room_for_one_long_or_many_short_sequences() -> None:
    def fixed(present_gib: float, model: dict[str, int], batch_size: int = 32) -> int:
        present_bytes = int(present_gib * GIB)
        return fixed_cache(present_bytes=present_bytes, batch_size=batch_size, **model).num_tokens

    assert [fixed(24, SMOLLM2, size) for size in (1, 32, 64)] == [8192, 32 * 512, 64 * 512]
    assert fixed(24, {**LLAMA_8B, "weight_bytes": 5 * GIB}) * 262_144 == 4 * GIB
    assert fixed(8, {**LLAMA_8B, "weight_bytes": 5 * GIB}) * 262_144 == 2 * GIB
    assert fixed(16, LLAMA_8B) == PAGE_TOKENS
