"""Prompts share the KV cache of the ``llama_cpp`` engine, and its output is still transformers'."""

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")
pytest.importorskip("xllamacpp", reason="runs in the engine environment")

from tests.runner.engines.batched.conftest import Serve
from tests.runner.engines.transformers.transformers_models import Served, prompt

pytestmark = pytest.mark.engine_env


def test_a_prompt_seen_before_is_shared_and_gives_the_same_output(served: Served) -> None:
    ids = prompt(200, seed=77)
    first, again, branched = (
        served.submit(tokens, 30) for tokens in (ids, [*ids, *prompt(9)], [*ids[:150], 7])
    )
    served.sink.wait(first)
    for tokens, shared in ((ids, 199), ([*ids[:150], 7], 150), (ids[:40], 39)):
        request = served.submit(tokens, 30)
        assert served.sink.wait(request)[0] == served.generate(tokens, 30)
        assert (request, shared) in served.sink.cache_hits
    for request in (again, branched):
        served.sink.wait(request)


def test_a_running_request_shares_its_prompt(served: Served) -> None:
    ids = prompt(100, seed=12)
    running = served.submit(ids, 16_000)
    served.sink.wait_for_tokens(running)
    other = served.submit([*ids, 5], 20)
    assert served.sink.wait(other)[0] == served.generate([*ids, 5], 20)
    assert dict(served.sink.cache_hits)[other] == 100
    served.engine.cancel(running)
    served.sink.wait(running)


def test_a_prompt_may_be_longer_than_a_cache_that_llama_cpp_rounds_up(serve: Serve) -> None:
    with serve(max_tokens_in_paged_kv_cache="300") as served:
        ids = prompt(400)
        assert served.answer(ids, 5)[0] == served.generate(ids, 5)
