"""Greedy output of the ``transformers`` engine is ``model.generate``'s, whatever else it does meanwhile."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

from runner.engines.protocol.messages import Sampling
from tests.runner.engines.transformers.transformers_models import (
    MAX_SEQUENCE_LENGTH,
    Served,
    llama,
    mistral,
    prompt,
    save_model,
    serve,
)

pytestmark = pytest.mark.engine_env

MODELS = {
    "tied embeddings": llama(tie_word_embeddings=True),
    "no shared key heads": llama(num_key_value_heads=8),
    "sliding window": mistral(sliding_window=24),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_generate_alone_and_beside_others(name: str, tmp_path: Path) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 5, 530)]
    with serve(save_model(MODELS[name], tmp_path)) as served:
        expected = [served.generate(ids, 16) for ids in prompts]
        assert len({tuple(tokens) for tokens in expected}) == len(prompts)
        assert [served.answer(ids, 16) for ids in prompts] == [(tokens, "length") for tokens in expected]
        together = [served.submit(ids, 16) for ids in prompts]
        assert [served.sink.wait(request_id)[0] for request_id in together] == expected


def test_equals_generate_among_sampled_cancelled_long_and_late_requests(served: Served) -> None:
    greedy, others = {}, []
    for index in range(8):
        ids = prompt(3 + 90 * (index % 4), seed=index)
        greedy[served.submit(ids, 10 + 15 * (index % 3))] = ids
        others.append(served.submit(prompt(20, seed=index), 40, Sampling(temperature=1.5, seed=index)))
        served.engine.cancel(others[-1 - index // 2])
        served.sink.wait_for_tokens(others[-1], index)
    for request_id, ids in greedy.items():
        tokens, _ = served.sink.wait(request_id)
        assert tokens == served.generate(ids, len(tokens))
    assert {served.sink.wait(request_id)[1] for request_id in others} == {"cancelled", "length"}


def test_one_candidate_is_greedy_at_any_temperature(served: Served) -> None:
    ids = prompt(20, seed=5)
    hot = Sampling(top_k=1, temperature=3.0, seed=1)
    assert served.answer(ids, 16, hot) == (served.generate(ids, 16), "length")


def test_a_prompt_seen_before_gives_the_same_output_from_the_cache(served: Served) -> None:
    ids = prompt(200, seed=77)
    first = served.answer(ids, 30)
    assert first[0] == served.generate(ids, 30)
    assert served.answer(ids, 30) == first
    assert served.answer([*ids[:150], 7], 30)[0] == served.generate([*ids[:150], 7], 30)


def test_more_requests_than_the_batch_holds_wait_their_turn(directory: Path) -> None:
    prompts = [prompt(4, seed=seed) for seed in range(7)]
    with serve(directory, max_batch_size="2") as served:
        together = [served.submit(ids, 12) for ids in prompts]
        for ids, request_id in zip(prompts, together, strict=True):
            assert served.sink.wait(request_id)[0] == served.generate(ids, 12)
        assert max(len(step) for step in served.sink.steps) == 2


def test_a_step_is_one_call_of_the_sink(served: Served) -> None:
    already = len(served.sink.steps)
    together = [served.submit(prompt(4, seed=seed), 100) for seed in range(5)]
    for request_id in together:
        served.sink.wait(request_id)
    steps = served.sink.steps[already:]
    assert all(len(tokens) == 1 for step in steps for _, tokens in step)
    assert all(len({request_id for request_id, _ in step}) == len(step) for step in steps)
    # The five may have come in one after another, but from then on they go together until the first one ends.
    begun = next(index for index, step in enumerate(steps) if len(step) == len(together))
    assert {len(step) for step in steps[begun:100]} == {len(together)}


def test_end_id_ends_and_is_part_of_the_output(served: Served) -> None:
    ids = prompt(10, seed=3)
    whole = served.generate(ids, 30)
    end_id = whole[12]
    tokens, reason = served.answer(ids, 30, end_id=end_id)
    assert (tokens, reason) == (whole[: whole.index(end_id) + 1], "end")
    assert tokens == served.generate(ids, 30, eos_token_id=end_id)


def test_without_end_id_the_models_own_settings_do_not_count(tmp_path: Path) -> None:
    ids = prompt(10, seed=3)
    plain = save_model(llama(), tmp_path / "plain")
    with serve(plain) as served:
        whole = served.generate(ids, 30)
    opinionated = save_model(
        llama(eos_token_id=whole[5]),
        tmp_path / "opinionated",
        do_sample=True,
        temperature=2.0,
        repetition_penalty=1.8,
        eos_token_id=whole[5],
        max_new_tokens=3,
    )
    with serve(opinionated) as served:
        assert served.answer(ids, 30) == (whole, "length")


def test_tokens_of_the_prompt_that_were_computed_before_are_told_once(served: Served) -> None:
    long = prompt(100, seed=78)
    hits = []
    for _ in range(2):
        request_id = served.submit(long, 5, Sampling(top_k=1))
        served.sink.wait(request_id)
        hits.append([count for its_id, count in served.sink.cache_hits if its_id == request_id])
    assert hits == [[0], [96]]


def test_the_longest_prompt_and_the_longest_output_have_room(served: Served) -> None:
    tokens, reason = served.answer(prompt(MAX_SEQUENCE_LENGTH - 1), 1)
    assert (len(tokens), reason) == (1, "length")
    assert tokens == served.generate(prompt(MAX_SEQUENCE_LENGTH - 1), 1)


def test_an_engine_without_a_tokenizer_offers_no_guides(served: Served) -> None:
    assert served.engine.ready.guide_types == ()
