"""Output of the ``llama_cpp`` engine is transformers' on the same weights, whatever else it does meanwhile.

Outputs are short: the KV cache has 16 bits a number, and a random model's scores are often close.
"""

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")
pytest.importorskip("xllamacpp", reason="runs in the engine environment")

from errors.engines import EngineCrashed
from errors.requests import PromptTooLong
from runner.engines.protocol.checks import check_request
from runner.engines.protocol.messages import Sampling, Statistics, Submit
from tests.runner.engines.llama_cpp.conftest import Serve
from tests.runner.engines.transformers.transformers_models import Served, prompt

pytestmark = pytest.mark.engine_env

LONG = 16_000
"""Tokens that take longer than any test waits before it cancels them."""
IDLE = Statistics(active=0, queued=0, cache_used=0.0)


def test_equals_generate_alone_and_beside_others(served: Served) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 5, 530)]
    expected = [served.generate(ids, 16) for ids in prompts]
    assert [served.answer(ids, 16) for ids in prompts] == [(tokens, "length") for tokens in expected]
    together = [served.submit(ids, 16) for ids in prompts]
    assert [served.sink.wait(request_id)[0] for request_id in together] == expected
    assert served.engine.statistics() == IDLE


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
    running = served.submit(ids, LONG)
    served.sink.wait_for_tokens(running)
    other = served.submit([*ids, 5], 20)
    assert served.sink.wait(other)[0] == served.generate([*ids, 5], 20)
    assert dict(served.sink.cache_hits)[other] == 100
    served.engine.cancel(running)
    served.sink.wait(running)


def test_requests_put_back_for_want_of_cache_go_on_where_they_were(serve: Serve) -> None:
    sampling = Sampling(temperature=1.0, seed=5, frequency_penalty=0.5)
    prompts = [prompt(100, seed=seed) for seed in range(4)]
    with serve(max_tokens_in_paged_kv_cache="256") as served:
        alone = served.answer(prompts[0], 30, sampling)
        sampled = served.submit(prompts[0], 30, sampling)
        together = [served.submit(ids, 30) for ids in prompts]
        assert served.sink.wait(sampled) == alone
        for ids, request_id in zip(prompts, together, strict=True):
            assert served.sink.wait(request_id)[0] == served.generate(ids, 30)
        assert served.engine.statistics() == IDLE


def test_a_prompt_may_be_longer_than_a_cache_that_llama_cpp_rounds_up(serve: Serve) -> None:
    with serve(max_tokens_in_paged_kv_cache="300") as served:
        ids = prompt(400)
        assert served.answer(ids, 5)[0] == served.generate(ids, 5)


def test_what_the_cache_can_not_hold_is_refused(serve: Serve) -> None:
    with serve(max_tokens_in_paged_kv_cache="256") as served:
        assert served.engine.ready.max_sequence_length == 256
        assert len(served.answer(prompt(200), 56)[0]) == 56
        with pytest.raises(PromptTooLong):
            check_request(Submit(1, prompt(256), 1), served.engine.ready)


def test_more_requests_than_the_batch_holds_wait_and_begin_by_priority(serve: Serve) -> None:
    with serve(max_batch_size="1") as served:
        running = served.submit([1, 2], LONG)
        served.sink.wait_for_tokens(running)
        waiting = [served.submit([3, 4], 2, priority=priority) for priority in (0, 5, -5, 0)]
        assert served.engine.statistics().queued == 4
        served.engine.cancel(running)
        for request_id in waiting:
            served.sink.wait(request_id)
        assert served.sink.ends == [running, *(waiting[index] for index in (2, 0, 3, 1))]
        assert max(len(step) for step in served.sink.steps) == 1


def test_a_cancelled_request_ends_once_and_holds_nothing(served: Served) -> None:
    running, beside = served.submit(prompt(100), LONG - 100), served.submit([5], 30)
    served.sink.wait_for_tokens(running, 3)
    during = served.engine.statistics()
    assert 0 < (during.cache_used or 0) < 1
    cancelled = [running]
    served.engine.cancel(running)
    for _ in range(50):
        cancelled.append(served.submit([1, 2, 3], LONG))
        served.engine.cancel(cancelled[-1])
    for request_id in (running, running, 987_654_321):
        served.engine.cancel(request_id)
    assert {served.sink.wait(request_id)[1] for request_id in cancelled} == {"cancelled"}
    assert len(served.sink.of(running)) < LONG - 100
    assert served.sink.wait(beside)[0] == served.generate([5], 30)
    assert all(served.sink.ends.count(request_id) == 1 for request_id in cancelled)
    assert served.engine.statistics() == IDLE


def test_a_loop_that_breaks_says_so_once_and_takes_nothing_more(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError("no space left")

    with serve() as served:
        monkeypatch.setattr(served.sink, "tokens", fail)
        served.submit([1], LONG)
        served.sink.wait_for(lambda: served.sink.breaks)
        assert [str(error) for error in served.sink.breaks] == ["no space left"]
        with pytest.raises(EngineCrashed):
            served.sink.wait(served.submit([1], 3))


def test_closing_drops_what_runs_and_is_no_failure(serve: Serve) -> None:
    with serve() as served:
        served.sink.wait_for_tokens(served.submit([1], LONG))
    assert (served.sink.breaks, served.sink.ends) == ([], [])
