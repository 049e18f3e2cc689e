"""Draws follow the distribution they should, truncation is exact, and a draw depends on its seed alone."""

import math
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.sequence import Sequence
from runner.engines.transformers.sampling import draw, gumbel

pytestmark = pytest.mark.engine_env

DRAWS = 6_000


def sequences(count: int, **sampling: float | int) -> list[Sequence]:
    """Return the same request with the seeds 0, 1, 2, ..."""
    return [Sequence(Submit(0, [1], 9, Sampling(**{"seed": seed, **sampling}))) for seed in range(count)]


def draw_many(scores: torch.Tensor, count: int = DRAWS, **sampling: float | int) -> list[int]:
    tokens: list[int] = draw(scores.expand(count, -1), sequences(count, **sampling)).tolist()
    return tokens


def assert_distributed(tokens: list[int], probabilities: torch.Tensor) -> None:
    """Pearson's chi-square; the seeds are fixed, so this can't fail by chance."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    assert counts[expected == 0].sum() == 0
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    # 4 standard deviations of the statistic above its mean: one in thousands of sound generators.
    assert statistic < degrees + 4 * math.sqrt(2 * degrees) + 4


def left(scores: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """Return the probability of each token by definition: the softmax of what top_k and top_p leave.

    top_p leaves the fewest most probable tokens that have at least this probability together.
    """
    probabilities = (scores / temperature).double().softmax(-1)
    order = probabilities.argsort(descending=True)
    if top_k:
        probabilities[order[top_k:]] = 0
        probabilities /= probabilities.sum()
    if top_p < 1:
        before = probabilities[order].cumsum(-1) - probabilities[order]
        probabilities[order[1:][before[1:] >= top_p]] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        *({"temperature": each} for each in (0.3, 1.0, 2.5)),
        *({"top_k": each} for each in (2, 5, 16)),
        *({"top_p": each} for each in (0.1, 0.5, 0.9, 0.999)),
        {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
    ],
    ids=str,
)
def test_draws_of_many_seeds_follow_the_softmax_of_what_is_left(sampling: dict[str, Any]) -> None:
    scores = torch.linspace(-2, 2, 23)[torch.randperm(23, generator=torch.Generator().manual_seed(0))]
    assert_distributed(draw_many(scores, **sampling), left(scores, **sampling))


def test_draws_of_one_seed_follow_the_softmax_and_do_not_follow_each_other() -> None:
    scores = torch.tensor([0.0, 1.0, 0.5, -1.0])
    [sequence] = sequences(1)
    tokens = []
    for _ in range(2500):
        tokens.append(int(draw(scores[None], [sequence])))
        sequence.append(tokens[-1])
    probabilities = scores.softmax(-1)
    assert_distributed(tokens, probabilities)
    pairs = [4 * first + second for first, second in pairwise(tokens)]
    assert_distributed(pairs, torch.outer(probabilities, probabilities).flatten())


def test_neighbouring_seeds_are_independent() -> None:
    tokens = draw_many(torch.zeros(8))
    assert_distributed([8 * a + b for a, b in pairwise(tokens)], torch.full((64,), 1 / 64))


def test_rare_tokens_of_a_large_vocabulary_come_as_often_as_they_should() -> None:
    scores = torch.zeros(10_000)
    scores[7] = 8.0
    tokens = draw_many(scores, 1500)
    share = math.exp(8) / (math.exp(8) + 9_999)
    assert abs(tokens.count(7) / 1500 - share) < 4 * math.sqrt(share / 1500)
    others = [token for token in tokens if token != 7]
    assert len(set(others)) > 0.9 * len(others)
    assert_distributed([token // 1000 for token in others], torch.full((10,), 0.1))


def test_a_nucleus_wider_than_what_is_looked_at_first_is_found() -> None:
    scores = torch.linspace(0, 0.001, 3000)
    tokens = draw_many(scores, 1000, top_p=0.5)
    assert min(tokens) >= 1499
    assert_distributed([(token - 1499) * 10 // 1501 for token in tokens], torch.full((10,), 0.1))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=40, unique=True),
    st.integers(0, 45),
    st.floats(0, 1),
    st.floats(0.05, 5),
)
def test_nothing_that_is_left_out_is_ever_drawn(
    levels: list[int], top_k: int, top_p: float, temperature: float
) -> None:
    scores = torch.tensor(levels) / 8
    # A share that falls on a border to the last digit may round either way.
    allowed = left(scores, temperature, top_k, min(top_p + 1e-6, 1.0)) > 0
    tokens = draw_many(scores, 200, top_k=top_k, top_p=top_p, temperature=temperature)
    assert set(tokens) <= set(allowed.nonzero().flatten().tolist())


@pytest.mark.parametrize("sampling", [{"temperature": 1e-30}, {"top_p": 0.0}, {"top_k": 1}])
def test_what_leaves_one_token_takes_the_most_probable(sampling: dict[str, float]) -> None:
    scores = torch.tensor([0.1, 0.3, 0.2999999, -1.0])
    assert set(draw_many(scores, 500, **sampling)) == {1}


def test_min_p_leaves_out_what_is_less_likely_than_its_share_of_the_likeliest() -> None:
    scores = torch.log(torch.tensor([0.5, 0.26, 0.24, 0.0001]))
    drawn = [set(draw_many(scores, 500, min_p=min_p)) for min_p in (0.0, 0.5, 1.0)]
    assert drawn == [{0, 1, 2}, {0, 1}, {0}]


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(12, 3000, generator=generator)
    kept = [{"top_p": 1}, {"top_p": 0.7}, {"top_k": 7, "top_p": 0.9}, {"top_k": 2000}]
    rows = [sequences(1, seed=row, **kept[row % 4])[0] for row in range(12)]
    together = draw(scores, rows)
    alone = torch.cat([draw(scores[row : row + 1], [rows[row]]) for row in range(12)])
    assert torch.equal(together, alone)


def test_noise_belongs_to_the_token_not_to_its_place_among_the_candidates() -> None:
    keys = torch.tensor([[12345], [-(2**63)]])
    whole = gumbel(keys, torch.arange(1000))
    some = torch.tensor([999, 3, 500])
    assert torch.equal(gumbel(keys, some), whole[:, some])
    assert torch.isfinite(whole).all()
    assert not torch.equal(whole[0], whole[1])


def test_the_same_seed_draws_the_same_on_every_machine() -> None:
    sequence = Sequence(Submit(0, [1], 99, Sampling(seed=42)))
    tokens = []
    for _ in range(8):
        tokens.append(int(draw(torch.zeros(1, 1000), [sequence])))
        sequence.append(tokens[-1])
    assert tokens == [526, 487, 442, 731, 819, 306, 75, 652]


def test_any_integer_is_a_seed_and_without_one_each_request_has_its_own() -> None:
    for seed in (0, -1, 2**64 - 1, 2**80):
        assert torch.equal(*(draw(torch.zeros(1, 1000), sequences(1, seed=seed)) for _ in range(2)))
    rows = [Sequence(Submit(0, [1], 9, Sampling())) for _ in range(50)]
    assert len(set(draw(torch.zeros(50, 100_000), rows).tolist())) > 40
