"""What a request asks of an engine, from seeds to stop words, holds beside any other request.

Outputs are short: llama.cpp's KV cache has 16 bits a number, and a random model's scores are often close.
"""

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

from runner.engines.protocol.messages import Sampling
from tests.runner.engines.transformers.transformers_models import Served, prompt

pytestmark = pytest.mark.engine_env

PROMPT = prompt(12, seed=9)
LOG_PROB_ERROR = 4e-2


def test_equals_generate_alone_and_beside_others(served: Served) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 5, 530)]
    expected = [served.generate(ids, 16) for ids in prompts]
    assert [served.answer(ids, 16) for ids in prompts] == [(tokens, "length") for tokens in expected]
    together = [served.submit(ids, 16) for ids in prompts]
    assert [served.sink.wait(request_id)[0] for request_id in together] == expected


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.3, seed=0),
        Sampling(top_p=0.8, top_k=40, seed=1),
        Sampling(top_p=0.95, temperature=0.7, seed=2, presence_penalty=0.4, repetition_penalty=1.2),
    ],
)
def test_a_seed_gives_the_same_output_alone_and_in_a_batch(served: Served, sampling: Sampling) -> None:
    alone = served.answer(PROMPT, 30, sampling)
    beside = [served.submit(prompt(7 * n, seed=n), 30, Sampling(seed=n)) for n in range(1, 6)]
    together = [served.submit(PROMPT, 30, sampling) for _ in range(3)]
    assert [served.sink.wait(request_id) for request_id in together] == [alone] * 3
    assert served.answer(PROMPT, 30, sampling) == alone
    assert all(served.sink.wait(request_id)[0] != alone[0] for request_id in beside)


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


@pytest.mark.parametrize(("start", "end"), [(6, 7), (5, 9), (0, 1), (0, 4)])
def test_a_stop_word_ends_the_output_and_is_part_of_it(served: Served, start: int, end: int) -> None:
    whole = served.generate(PROMPT, 30)
    word = whole[start:end]
    first = next(n for n in range(len(word), 31) if whole[:n][-len(word) :] == word)
    answer = served.answer(PROMPT, 30, stop_words=[[whole[0], 299, 299], word])
    assert answer == (whole[:first], "stop")


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(seed=3, temperature=2.0)])
def test_each_tokens_log_probability_is_the_models_own(served: Served, sampling: Sampling) -> None:
    ids = prompt(12)
    request = served.submit(ids, 6, sampling, wants_log_probs=True, num_top_log_probs=3)
    beside = [served.submit(prompt(9, seed), 5, wants_log_probs=seed > 0) for seed in range(3)]
    tokens, _ = served.sink.wait(request)
    for each in beside:
        served.sink.wait(each)
    assert [len(served.sink.token_log_probs.get(each, [])) for each in beside] == [0, 5, 5]
    log_probs = served.sink.token_log_probs[request]
    assert len(log_probs) == len(tokens) == 6
    for index, (token, told) in enumerate(zip(tokens, log_probs, strict=True)):
        expected = served.scores([*ids, *tokens[:index]]).log_softmax(-1)
        assert told.value == pytest.approx(float(expected[token]), abs=LOG_PROB_ERROR)
        values, _ = expected.topk(3)
        likeliest, told_values = zip(*told.top, strict=True)
        for each in (told_values, expected[list(likeliest)].tolist()):
            assert list(each) == pytest.approx(values.tolist(), abs=LOG_PROB_ERROR)


def test_a_bias_bars_a_token_or_forces_it_and_leaves_log_probabilities_alone(served: Served) -> None:
    ids = prompt(12)
    (first,) = served.answer(ids, 1)[0]
    barred, _ = served.answer(ids, 1, Sampling(top_k=1, logit_bias={first: -100.0}))
    assert barred != [first]
    request = served.submit(ids, 4, Sampling(top_k=1, logit_bias={7: 100.0}), wants_log_probs=True)
    assert served.sink.wait(request)[0] == [7, 7, 7, 7]
    expected = float(served.scores(ids).log_softmax(-1)[7])
    assert served.sink.token_log_probs[request][0].value == pytest.approx(expected, abs=LOG_PROB_ERROR)
