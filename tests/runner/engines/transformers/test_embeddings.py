"""Embeddings of the ``transformers`` engine are those that its model gives by itself."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import numpy as np
import torch
from transformers import AutoModel, BertConfig, PretrainedConfig, PreTrainedModel, RobertaConfig, T5Config

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Submit
from runner.engines.transformers.adapter import load
from runner.engines.transformers.embedding import EmbeddingEngine
from tests.engine.pooling_files import write_pooling
from tests.runner.engines.transformers.transformers_models import VOCAB_SIZE, RecordingSink, llama, prompt

pytestmark = pytest.mark.engine_env

SHAPE = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
Pool = Callable[[torch.Tensor], torch.Tensor]
MEAN: Pool = lambda hidden: hidden.mean(0)  # noqa: E731
FIRST: Pool = lambda hidden: hidden[0]  # noqa: E731
LAST: Pool = lambda hidden: hidden[-1]  # noqa: E731


def bert() -> PretrainedConfig:
    return BertConfig(**SHAPE, num_attention_heads=4, max_position_embeddings=128)


class Embedding:
    def __init__(self, engine: EmbeddingEngine, sink: RecordingSink, model: PreTrainedModel) -> None:
        self.engine = engine
        self.sink = sink
        self._model = model

    def vector(self, number: int) -> np.ndarray:
        self.sink.wait(number)
        return np.frombuffer(self.sink.embeddings[number], "<f4")

    @torch.no_grad()
    def expected(self, ids: list[int], pool: Pool, *, is_normalized: bool) -> np.ndarray:
        """Return the embedding, calculated for this input alone."""
        vector = pool(self._model(torch.tensor([ids])).last_hidden_state[0])
        found: np.ndarray = (vector / vector.norm() if is_normalized else vector).numpy()
        return found


@contextmanager
def serving(config: PretrainedConfig, folder: Path, mode: str, *modules: str) -> Iterator[Embedding]:
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    write_pooling(folder, mode, modules=("Transformer", "Pooling", *modules))
    sink = RecordingSink()
    engine = load(folder, sink, {})
    assert isinstance(engine, EmbeddingEngine)
    try:
        yield Embedding(engine, sink, AutoModel.from_pretrained(folder))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("config", "mode", "modules", "pool"),
    [
        (bert(), "mean_tokens", ["Normalize"], MEAN),
        (bert(), "mean_tokens", [], MEAN),
        (bert(), "cls_token", ["Normalize"], FIRST),
        (llama(), "lasttoken", ["Normalize"], LAST),
        (llama(), "mean_tokens", [], MEAN),
    ],
)
def test_inputs_of_all_lengths_are_embedded_as_each_alone(
    tmp_path: Path, config: PretrainedConfig, mode: str, modules: list[str], pool: Pool
) -> None:
    inputs = [prompt(1 + 13 * number % 120, seed=number) for number in range(50)]
    with serving(config, tmp_path, mode, *modules) as served:
        for number, ids in enumerate(inputs):
            served.engine.submit(Submit(number, ids, 0, embeds=True))
        for number, ids in enumerate(inputs):
            expected = served.expected(ids, pool, is_normalized=bool(modules))
            np.testing.assert_allclose(served.vector(number), expected, atol=1e-5)
        assert set(served.sink.reasons.values()) == {"end"}
        assert served.engine.statistics().queued == 0


def test_the_longest_input_is_that_of_the_positions(tmp_path: Path) -> None:
    """Roberta numbers positions from 2: one more token would fail."""
    config = RobertaConfig(**SHAPE, num_attention_heads=4, max_position_embeddings=66, pad_token_id=1)
    with serving(config, tmp_path, "mean_tokens") as served:
        assert served.engine.ready.is_embedding
        assert served.engine.ready.max_sequence_length == 64
        ids = [2 + each % 200 for each in range(64)]
        served.engine.submit(Submit(1, ids, 0, embeds=True))
        expected = served.expected(ids, MEAN, is_normalized=False)
        np.testing.assert_allclose(served.vector(1), expected, atol=1e-5)


def test_a_failing_input_fails_alone_and_a_cancelled_one_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(bert(), tmp_path, "mean_tokens") as served:
        is_entered, may_go_on = threading.Event(), threading.Event()
        real = served.engine._embed

        def embed(inputs: list[list[int]]) -> torch.Tensor:
            is_entered.set()
            assert may_go_on.wait(240)
            return real(inputs)

        monkeypatch.setattr(served.engine, "_embed", embed)
        served.engine.submit(Submit(1, prompt(5), 0, embeds=True))
        assert is_entered.wait(240)
        for number in (2, 3, 4):
            ids = [VOCAB_SIZE + 5] if number == 3 else prompt(5)  # The model has no such token.
            served.engine.submit(Submit(number, ids, 0, embeds=True))
        served.engine.submit(Submit(5, prompt(5), 0, embeds=True))
        assert served.engine.statistics().active == 1
        for number in (1, 5, 5, 99):
            served.engine.cancel(number)
        may_go_on.set()
        with pytest.raises(IndexError):
            served.sink.wait(3)
        assert [served.sink.wait(number)[1] for number in (1, 2, 4, 5)] == [
            "cancelled",
            "end",
            "end",
            "cancelled",
        ]
        assert sorted(served.sink.ends) == [1, 2, 3, 4, 5]


def test_a_model_that_is_no_encoder_and_no_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(CodedError, match="encoder and a decoder"), serving(config, tmp_path, "mean_tokens"):
        pass
