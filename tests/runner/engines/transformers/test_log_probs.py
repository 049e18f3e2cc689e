"""Log probabilities are the model's own; logit_bias and min_p do to the scores what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch

from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.transformers.sampling import draw
from runner.engines.transformers.sequence import Sequence
from tests.runner.engines.transformers.transformers_models import Served, llama, prompt, save_model, serve

pytestmark = pytest.mark.engine_env


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory: Path = save_model(llama(), tmp_path_factory.mktemp("llama"))
    with serve(directory) as served:
        yield served


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(seed=3, temperature=2.0)])
def test_each_tokens_log_probability_is_the_models_own(served: Served, sampling: Sampling) -> None:
    ids = prompt(12)
    request = served.submit(ids, 6, sampling, wants_log_probs=True, num_top_log_probs=3)
    tokens, _ = served.sink.wait(request)
    log_probs = served.sink.token_log_probs[request]
    assert len(log_probs) == len(tokens) == 6
    for index, (token, told) in enumerate(zip(tokens, log_probs, strict=True)):
        expected = served.scores([*ids, *tokens[:index]]).log_softmax(-1)
        assert told.value == pytest.approx(float(expected[token]), abs=1e-3)
        values, likeliest = expected.topk(3)
        assert [token for token, _ in told.top] == likeliest.tolist()
        assert [value for _, value in told.top] == pytest.approx(values.tolist(), abs=1e-3)


def test_who_does_not_ask_is_told_none_and_beside_others_each_gets_its_own(served: Served) -> None:
    asking = [served.submit(prompt(9, seed), 5, wants_log_probs=True) for seed in range(3)]
    silent = served.submit(prompt(9), 5)
    for request in [*asking, silent]:
        served.sink.wait(request)
    assert [len(served.sink.token_log_probs[request]) for request in asking] == [5, 5, 5]
    assert silent not in served.sink.token_log_probs


def test_a_bias_bars_a_token_or_forces_it_and_leaves_log_probabilities_alone(served: Served) -> None:
    ids = prompt(12)
    (first,) = served.answer(ids, 1)[0]
    barred, _ = served.answer(ids, 1, Sampling(top_k=1, logit_bias={first: -100.0}))
    assert barred != [first]
    request = served.submit(ids, 4, Sampling(top_k=1, logit_bias={7: 100.0}), wants_log_probs=True)
    assert served.sink.wait(request)[0] == [7, 7, 7, 7]
    expected = float(served.scores(ids).log_softmax(-1)[7])
    assert served.sink.token_log_probs[request][0].value == pytest.approx(expected, abs=1e-3)


def test_min_p_leaves_out_what_is_less_likely_than_its_share_of_the_likeliest() -> None:
    scores = torch.log(torch.tensor([[0.5, 0.26, 0.24, 0.0001]]))
    drawn = {}
    for min_p in (0.0, 0.5, 1.0):
        sampling = [Sampling(seed=seed, min_p=min_p) for seed in range(500)]
        sequences = [Sequence(Submit(0, [1], 9, each)) for each in sampling]
        drawn[min_p] = set(draw(scores.expand(500, -1), sequences).tolist())
    assert drawn == {0.0: {0, 1, 2}, 0.5: {0, 1}, 1.0: {0}}
