"""The ``llama_cpp`` engine chooses tokens as the transformers engine does."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="runs in the engine environment")
pytest.importorskip("xllamacpp", reason="runs in the engine environment")

import torch

from runner.engines.llama_cpp import sampling as ours
from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.sequence import Sequence
from runner.engines.transformers.sampling import draw, gumbel

pytestmark = pytest.mark.engine_env

SAMPLINGS = [
    Sampling(temperature=1.3),
    Sampling(top_p=0.8, top_k=40),
    Sampling(top_k=3),
    Sampling(top_p=0.95, temperature=0.7),
    Sampling(top_p=0.999, temperature=30.0),
    Sampling(min_p=0.2, top_p=0.0001, top_k=5),
    Sampling(min_p=0.3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("vocab_size", [5, 3000])
def test_the_same_scores_seed_and_position_give_the_token_of_the_transformers_engine(
    sampling: Sampling, vocab_size: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    for seed in range(100):
        scores = torch.randn(vocab_size, generator=generator) * 3
        values = {name: getattr(sampling, name) for name in sampling.__struct_fields__} | {"seed": seed}
        sequence = Sequence(Submit(0, [1], 9, Sampling(**values)))
        sequence.tokens += list(range(seed % 7))
        assert ours.draw(scores.numpy(), sequence) == int(draw(scores[None], [sequence])[0])


def test_the_noise_is_that_of_the_transformers_engine() -> None:
    ids = torch.arange(50_000)
    for key in (0, 1, -1, -(1 << 63), (1 << 63) - 1):
        theirs = gumbel(torch.tensor([[key]]), ids)[0].numpy()
        np.testing.assert_allclose(ours.gumbel(key, ids.numpy()), theirs, rtol=1e-5, atol=1e-6)
