"""Cancelled, refused and crashed: an engine frees, reports once, and serves the others."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

from errors.engines import EngineCrashed
from errors.requests import InvalidTensor, PromptTooLong
from runner.engines.protocol.checks import check_request
from runner.engines.protocol.messages import Sampling, Statistics, Submit
from tests.runner.engines.batched.conftest import Serve
from tests.runner.engines.recording_sink import RecordingSink
from tests.runner.engines.transformers.transformers_models import Served, prompt

pytestmark = pytest.mark.engine_env

IDLE = Statistics(active=0, queued=0, cache_used=0.0)


@pytest.fixture(scope="module")
def long(max_length: int) -> int:
    """Return a number of tokens that take longer than any test waits before it cancels them."""
    return max_length - 8


def test_a_cancelled_request_holds_nothing_when_its_end_is_reported(
    served: Served, monkeypatch: pytest.MonkeyPatch, long: int
) -> None:
    at_end: list[Statistics] = []
    finished = RecordingSink.finished

    def record(sink: RecordingSink, *arguments: Any) -> None:
        at_end.append(served.engine.statistics())
        finished(sink, *arguments)

    request_id = served.submit(prompt(100), long - 100)
    served.sink.wait_for_tokens(request_id, 3)
    during = served.engine.statistics()
    monkeypatch.setattr(RecordingSink, "finished", record)
    served.engine.cancel(request_id)
    tokens, reason = served.sink.wait(request_id)
    assert (during.active, during.queued) == (1, 0)
    assert during.cache_used is not None
    assert 0 < during.cache_used < 1
    assert at_end == [IDLE]
    assert reason == "cancelled"
    assert 3 <= len(tokens) < long - 100


def test_a_request_cancelled_while_it_waits_ends_at_once(serve: Serve, long: int) -> None:
    with serve(max_batch_size="1") as served:
        running = served.submit([1, 2], long)
        served.sink.wait_for_tokens(running)
        waiting = served.submit([3, 4], long)
        served.sink.wait_for(lambda: served.engine.statistics().queued == 1 or running in served.sink.ends)
        served.engine.cancel(waiting)
        assert served.sink.wait(waiting) == ([], "cancelled")
        assert running not in served.sink.ends
        assert served.engine.statistics().active == 1
        served.engine.cancel(running)
        assert served.sink.wait(running)[1] == "cancelled"


def test_a_lower_priority_begins_earlier(serve: Serve, long: int) -> None:
    with serve(max_batch_size="1") as served:
        running = served.submit([1, 2], long)
        served.sink.wait_for_tokens(running)
        waiting = [served.submit([3, 4], 2, priority=priority) for priority in (0, 5, -5, 0)]
        served.sink.wait_for(lambda: served.engine.statistics().queued == 4 or running in served.sink.ends)
        served.engine.cancel(running)
        for request_id in waiting:
            served.sink.wait(request_id)
        assert served.sink.ends == [running, *(waiting[index] for index in (2, 0, 3, 1))]
        assert max(map(len, served.sink.steps)) == 1


def test_cancelling_right_after_submitting_is_never_lost(served: Served, long: int) -> None:
    beside = served.submit([5], 200)
    cancelled = []
    for _ in range(150):
        cancelled.append(served.submit([1, 2, 3], long))
        served.engine.cancel(cancelled[-1])
    assert {served.sink.wait(request_id)[1] for request_id in cancelled} == {"cancelled"}
    served.sink.wait(beside)
    assert all(served.sink.ends.count(request_id) == 1 for request_id in cancelled)
    assert served.engine.statistics() == IDLE


def test_cancelling_twice_or_in_vain_does_nothing(served: Served, long: int) -> None:
    done = served.submit([1, 2], 3)
    served.sink.wait(done)
    running = served.submit([1, 2], long)
    served.sink.wait_for_tokens(running)
    for request_id in (done, 987_654_321, running, running, running):
        served.engine.cancel(request_id)
    assert served.sink.wait(running)[1] == "cancelled"
    served.engine.cancel(running)
    assert served.answer([1, 2], 3)[0] == served.sink.outputs[done]
    assert served.sink.ends.count(done) == served.sink.ends.count(running) == 1


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


def test_requests_put_back_start_again_when_those_before_them_are_cancelled(serve: Serve) -> None:
    # The cache holds one of them whole: the other is put back, and nothing new starts until one ends.
    with serve(max_tokens_in_paged_kv_cache="256") as served:
        together = [served.submit(prompt(120, seed=seed), 30) for seed in range(2)]
        for request_id in together:
            served.sink.wait_for_tokens(request_id)
        served.sink.wait_for(lambda: served.engine.statistics().queued == 1 or len(served.sink.ends) == 2)
        first, second = together
        served.engine.cancel(first)
        assert served.sink.wait(first)[1] == "cancelled"
        assert served.sink.wait(second) == (served.generate(prompt(120, seed=1), 30), "length")


def test_what_the_cache_can_not_hold_is_refused(serve: Serve) -> None:
    with serve(max_tokens_in_paged_kv_cache="256") as served:
        assert served.engine.ready.max_sequence_length == 256
        assert len(served.answer(prompt(200), 56)[0]) == 56
        with pytest.raises(InvalidTensor):
            check_request(Submit(1, prompt(200), 57), served.engine.ready)
        with pytest.raises(PromptTooLong) as raised:
            check_request(Submit(1, prompt(256), 1), served.engine.ready)
        assert raised.value.facts == {"prompt_tokens": 256, "max_input_tokens": 255, "excess_tokens": 1}


def test_a_loop_that_breaks_says_so_once_and_takes_nothing_more(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, long: int
) -> None:
    with serve() as served:
        together = [served.submit([seed], long) for seed in range(3)]
        for request_id in together:
            served.sink.wait_for_tokens(request_id)

        def fail(_: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(served.sink, "tokens", fail)
        served.sink.wait_for(lambda: served.sink.breaks)
        assert [str(error) for error in served.sink.breaks] == ["no space left"]
        with pytest.raises(EngineCrashed):
            served.sink.wait(served.submit([1], 3))
    assert len(served.sink.breaks) == 1


def test_closing_drops_what_runs_and_is_no_failure(serve: Serve, long: int) -> None:
    with serve() as served:
        running = served.submit([1], long)
        served.sink.wait_for_tokens(running)
    assert served.sink.breaks == []
    assert served.sink.ends == []
