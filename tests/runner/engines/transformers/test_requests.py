"""What a request asks of the ``transformers`` engine, from seeds to stop words, holds beside any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch

from runner.engines.protocol.messages import Sampling
from runner.engines.transformers import batching as transformers_batching
from tests.runner.engines.transformers.transformers_models import Served, llama, prompt, save_model, serve

pytestmark = pytest.mark.engine_env

PROMPT = prompt(12, seed=9)


@pytest.fixture(scope="module", params=["in the step", "after it, as on a GPU"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Tokens are chosen where the library does it, or after its step."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "in the step":
            patch.setattr(transformers_batching, "needs_chosen_after", lambda model: True)
        with serve(save_model(llama(), tmp_path_factory.mktemp("llama"))) as served:
            yield served


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.3, seed=0),
        Sampling(top_p=0.8, top_k=40, seed=1),
        Sampling(top_p=0.95, temperature=0.7, seed=2, presence_penalty=0.4, repetition_penalty=1.2),
    ],
)
def test_a_seed_gives_the_same_output_alone_and_in_a_batch(served: Served, sampling: Sampling) -> None:
    alone = served.answer(PROMPT, 40, sampling)
    beside = [served.submit(prompt(7 * n, seed=n), 40, Sampling(seed=n)) for n in range(1, 6)]
    together = [served.submit(PROMPT, 40, sampling) for _ in range(3)]
    assert [served.sink.wait(request_id) for request_id in together] == [alone] * 3
    assert served.answer(PROMPT, 40, sampling) == alone
    assert all(served.sink.wait(request_id)[0] != alone[0] for request_id in beside)


def test_tokens_of_the_prompt_that_were_computed_before_are_told_once(served: Served) -> None:
    long = prompt(100, seed=77)
    hits = []
    for _ in range(2):
        request_id = served.submit(long, 5, Sampling(top_k=1))
        served.sink.wait(request_id)
        hits.append([count for its_id, count in served.sink.cache_hits if its_id == request_id])
    assert hits == [[0], [96]]


def test_other_seeds_and_no_seed_give_other_outputs(served: Served) -> None:
    samplings = [Sampling(seed=0), Sampling(seed=1), Sampling(), Sampling()]
    together = [served.submit(PROMPT, 30, sampling) for sampling in samplings]
    assert len({tuple(served.sink.wait(request_id)[0]) for request_id in together}) == len(samplings)


def test_first_tokens_follow_the_models_distribution(served: Served) -> None:
    probabilities = served.scores(PROMPT).softmax(-1).double()
    together = [served.submit(PROMPT, 1, Sampling(seed=seed)) for seed in range(600)]
    tokens = torch.tensor([served.sink.wait(request_id)[0][0] for request_id in together])
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    often = probabilities * 600 >= 5
    expected = probabilities[often] * 600
    statistic = float(((counts[often] - expected) ** 2 / expected).sum())
    assert len(expected) > 5
    assert statistic < len(expected) + 4 * (2 * len(expected)) ** 0.5 + 4


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_k=1), Sampling(top_k=1, temperature=3)]
)
def test_zero_temperature_and_top_k_1_are_greedy(served: Served, sampling: Sampling) -> None:
    assert served.answer(PROMPT, 25, sampling)[0] == served.generate(PROMPT, 25)


def test_repetition_penalty_is_that_of_generate(served: Served) -> None:
    tokens, _ = served.answer(PROMPT, 40, Sampling(top_k=1, repetition_penalty=1.4))
    assert tokens == served.generate(PROMPT, 40, repetition_penalty=1.4)
    assert tokens != served.generate(PROMPT, 40)


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 1.5), (1.0, 0.5), (-2.0, -0.5)])
def test_presence_counts_once_and_frequency_each_time_in_the_output(
    served: Served, presence: float, frequency: float
) -> None:
    output: list[int] = []
    for _ in range(30):
        scores = served.scores(PROMPT + output)
        for token in set(output):
            scores[token] -= presence + frequency * output.count(token)
        output.append(int(scores.argmax()))
    sampling = Sampling(temperature=0.0, presence_penalty=presence, frequency_penalty=frequency)
    assert served.answer(PROMPT, 30, sampling)[0] == output
    assert output != served.generate(PROMPT, 30)


def test_bad_words_are_those_of_generate(served: Served) -> None:
    whole = served.generate(PROMPT, 30)
    bad_words = [[whole[0]], whole[4:6], whole[8:11], [PROMPT[-1], whole[1]]]
    tokens, _ = served.answer(PROMPT, 30, bad_words=bad_words)
    assert tokens == served.generate(PROMPT, 30, bad_words_ids=bad_words)
    assert whole[0] not in tokens


def test_bad_words_hold_for_sampled_tokens(served: Served) -> None:
    bad_words = [[token] for token in range(0, 300, 2)]
    tokens, _ = served.answer(PROMPT, 60, Sampling(temperature=5.0, seed=1), bad_words=bad_words)
    assert all(token % 2 for token in tokens)


def test_min_tokens_come_before_the_end_id(served: Served) -> None:
    whole = served.generate(PROMPT, 30)
    end_id = whole[2]
    tokens, reason = served.answer(PROMPT, 30, end_id=end_id, min_tokens=10)
    assert tokens == served.generate(PROMPT, 30, eos_token_id=end_id, min_new_tokens=10)
    assert end_id not in tokens[:10]
    assert (reason == "end") == (tokens[-1] == end_id)


def test_min_tokens_come_before_a_stop_word(served: Served) -> None:
    whole = served.generate(PROMPT, 30)
    stop_words = [[whole[3]], whole[5:7]]
    tokens, _ = served.answer(PROMPT, 20, stop_words=stop_words, min_tokens=20)
    assert len(tokens) == 20
    for word in stop_words:
        ends = [tokens[: end + 1][-len(word) :] == word for end in range(len(tokens))]
        assert not any(ends)


@pytest.mark.parametrize(("start", "end"), [(6, 7), (5, 9), (0, 1), (0, 4)])
def test_a_stop_word_ends_the_output_and_is_part_of_it(served: Served, start: int, end: int) -> None:
    whole = served.generate(PROMPT, 30)
    word = whole[start:end]
    first = next(n for n in range(len(word), 31) if whole[:n][-len(word) :] == word)
    answer = served.answer(PROMPT, 30, stop_words=[[whole[0], 299, 299], word])
    assert answer == (whole[:first], "stop")


def test_a_stop_word_that_begins_in_the_prompt_does_not_count(served: Served) -> None:
    whole = served.generate(PROMPT, 10)
    answer = served.answer(PROMPT, 10, stop_words=[[PROMPT[-1], whole[0]]])
    assert answer == (whole, "length")


def test_a_stop_word_that_ends_with_the_last_token_is_the_reason(served: Served) -> None:
    whole = served.generate(PROMPT, 10)
    assert served.answer(PROMPT, 10, stop_words=[whole[8:10]]) in [(whole, "stop")]


def test_stop_words_end_their_own_request_alone(served: Served) -> None:
    prompts = [prompt(10, seed=seed) for seed in range(4)]
    whole = [served.generate(ids, 30) for ids in prompts]
    stopping = [
        served.submit(ids, 30, stop_words=[tokens[9:11]]) for ids, tokens in zip(prompts, whole, strict=True)
    ]
    going_on = [served.submit(ids, 30) for ids in prompts]
    assert [served.sink.wait(request_id) for request_id in going_on] == [
        (tokens, "length") for tokens in whole
    ]
    for request_id, tokens in zip(stopping, whole, strict=True):
        output, reason = served.sink.wait(request_id)
        assert reason == "stop"
        assert output == tokens[: len(output)]
        assert output[-2:] == tokens[9:11]
