"""The KV cache on a CPU takes memory for running sequences and the latest prefixes, and for nothing else."""

import array
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

from runner.engines.transformers import attention, cache
from runner.engines.transformers.cache import GrowingCache
from tests.runner.engines.transformers.transformers_models import Served, llama, prompt, save_model, serve

pytestmark = pytest.mark.engine_env

WIDE = llama(hidden_size=256, num_attention_heads=32, num_key_value_heads=32, head_dim=64)
"""48 KiB per token."""
TOKEN_BYTES = 3 * 32 * 64 * 2 * 4


@pytest.fixture
def served(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Yield a served model that retains the prefixes of finished requests up to 8 pages of 32 tokens."""
    monkeypatch.setattr(cache, "RETAINED_TOKENS", 256)
    with serve(directory) as served:
        yield served


def cached(served: Served, ids: list[int]) -> int:
    """Return how many tokens of ``ids`` were in the cache. The answer must be that of ``generate``."""
    request_id = served.submit(ids, 5)
    assert served.sink.wait(request_id)[0] == served.generate(ids, 5)
    (count,) = [count for its_id, count in served.sink.cache_hits if its_id == request_id]
    return count


def cache_of(served: Served) -> GrowingCache:
    found = served.engine._batch._processor.cache
    assert isinstance(found, GrowingCache)
    return found


def resident_bytes(cache: GrowingCache) -> int:
    """Return the memory behind the cache's addresses."""
    first_page = cache.cache_tensor.data_ptr() // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(8 * first_page)
        pages = array.array("Q", pagemap.read(8 * -(-cache.cache_tensor.nbytes // mmap.PAGESIZE)))
    return mmap.PAGESIZE * sum(page >> 63 for page in pages)


def test_memory_is_taken_as_sequences_grow_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained = 256
    monkeypatch.setattr(cache, "RETAINED_TOKENS", retained)
    with serve(save_model(WIDE, tmp_path)) as served:
        growing = cache_of(served)
        assert growing.cache_tensor.nbytes > 32 * 1024 * TOKEN_BYTES
        assert resident_bytes(growing) == 0
        running = [served.submit(prompt(500, seed=seed), 400) for seed in range(4)]
        served.sink.wait_for_tokens(running[-1], 1)
        assert resident_bytes(growing) > 4 * 500 * TOKEN_BYTES
        for request_id in running:
            served.engine.cancel(request_id)
        for request_id in running:
            served.sink.wait(request_id)
        # A step's tokens are kept free for the next sequences; two sectors are the library's.
        most = retained + cache.STEP_TOKENS + 3 * 32
        assert resident_bytes(growing) <= most * TOKEN_BYTES
        assert served.engine.statistics().cache_used == 0
        assert served.answer(prompt(300), 10)[0] == served.generate(prompt(300), 10)


def test_the_prefixes_that_were_used_last_are_retained(served: Served) -> None:
    first, second, third = (prompt(130, seed=seed) for seed in range(3))
    assert [cached(served, ids) for ids in (first, second, first)] == [0, 0, 128]
    assert cached(served, third) == 0
    assert [cached(served, ids) for ids in (first, second)] == [128, 0]


def test_of_a_prefix_that_does_not_fit_the_beginning_is_retained(served: Served) -> None:
    long = prompt(500, seed=5)
    assert [cached(served, long) for _ in range(2)] == [0, 256]
    assert cached(served, long[:130]) == 128


def test_a_conversation_continues_from_its_last_answer(served: Served) -> None:
    ids = prompt(60, seed=9)
    answer, _ = served.answer(ids, 40)
    assert cached(served, ids + answer + prompt(10, seed=10)) == 96


def test_the_prefix_of_a_cancelled_request_is_retained(served: Served) -> None:
    ids = prompt(130, seed=7)
    request_id = served.submit(ids, 800)
    served.sink.wait_for_tokens(request_id, 1)
    served.engine.cancel(request_id)
    assert served.sink.wait(request_id)[1] == "cancelled"
    assert served.engine.statistics().cache_used == 0
    assert cached(served, ids) == 128


def test_a_prefix_that_a_running_request_uses_is_not_evicted(served: Served) -> None:
    ids = prompt(130, seed=8)
    expected = served.generate(ids, 200)
    running = [served.submit(ids, 200) for _ in range(2)]
    for seed in range(20, 24):
        assert cached(served, prompt(300, seed=seed)) == 0
    assert [served.sink.wait(request_id)[0] for request_id in running] == [expected] * 2


def test_masks_of_long_prompts_are_not_kept() -> None:
    dtype = attention.torch.float32
    attention._made_mask.cache_clear()
    long = attention._mask(512, 8193, 8193, dtype)
    assert attention._made_mask.cache_info().currsize == 0
    assert long.shape == (1, 1, 512, 8193)
    assert (long[0, 0, 0, -512:] == 0).sum() == 1
    assert attention._mask(512, 8192, 8192, dtype) is attention._mask(512, 8192, 8192, dtype)
