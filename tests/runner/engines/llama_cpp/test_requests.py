"""What a request asks of the ``llama_cpp`` engine, from seeds to guides, is as in the transformers engine."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="runs in the engine environment")
pytest.importorskip("xllamacpp", reason="runs in the engine environment")

import torch
from tokenizers import Tokenizer

from runner.engines.llama_cpp import sampling as ours
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Guide, Sampling, Submit
from runner.engines.sequence import Sequence
from runner.engines.transformers.sampling import draw, gumbel
from tests.runner.engines.guides.byte_tokenizer import END_ID
from tests.runner.engines.transformers.transformers_models import Served, prompt

pytestmark = pytest.mark.engine_env

PROMPT = prompt(12, seed=9)
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


def test_a_seed_gives_the_same_output_alone_and_in_a_batch(served: Served) -> None:
    sampling = Sampling(top_p=0.95, temperature=0.7, seed=2, presence_penalty=0.4, repetition_penalty=1.2)
    alone = served.answer(PROMPT, 40, sampling)
    beside = [served.submit(prompt(7 * n, seed=n), 40, Sampling(seed=n)) for n in range(1, 6)]
    together = [served.submit(PROMPT, 40, sampling) for _ in range(3)]
    assert [served.sink.wait(request_id) for request_id in together] == [alone] * 3
    assert all(served.sink.wait(request_id)[0] != alone[0] for request_id in beside)


def test_penalties_are_those_of_generate_and_of_openai(served: Served) -> None:
    tokens, _ = served.answer(PROMPT, 40, Sampling(top_k=1, repetition_penalty=1.4))
    assert tokens == served.generate(PROMPT, 40, repetition_penalty=1.4)
    output: list[int] = []
    for _ in range(20):
        scores = served.scores(PROMPT + output)
        for token in set(output):
            scores[token] -= 1.0 + 0.5 * output.count(token)
        output.append(int(scores.argmax()))
    sampling = Sampling(temperature=0.0, presence_penalty=1.0, frequency_penalty=0.5)
    assert served.answer(PROMPT, 20, sampling)[0] == output


def test_bad_words_stop_words_and_ends(served: Served) -> None:
    whole = served.generate(PROMPT, 30)
    bad_words = [[whole[0]], whole[4:6], [PROMPT[-1], whole[1]]]
    expected = served.generate(PROMPT, 30, bad_words_ids=bad_words)
    assert served.answer(PROMPT, 30, bad_words=bad_words)[0] == expected
    end_id = whole[2]
    tokens, _ = served.answer(PROMPT, 30, end_id=end_id, min_tokens=10)
    assert tokens == served.generate(PROMPT, 30, eos_token_id=end_id, min_new_tokens=10)
    word = whole[5:9]
    first = next(n for n in range(len(word), 31) if whole[:n][-len(word) :] == word)
    assert served.answer(PROMPT, 30, stop_words=[[whole[0], 299, 299], word]) == (whole[:first], "stop")


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(seed=3, temperature=2.0)])
def test_each_tokens_log_probability_is_the_models_own(served: Served, sampling: Sampling) -> None:
    request = served.submit(PROMPT, 6, sampling, wants_log_probs=True, num_top_log_probs=3)
    beside = [served.submit(prompt(9, seed), 5, wants_log_probs=seed > 0) for seed in range(3)]
    tokens, _ = served.sink.wait(request)
    for each in beside:
        served.sink.wait(each)
    assert [len(served.sink.token_log_probs.get(each, [])) for each in beside] == [0, 5, 5]
    for index, (token, told) in enumerate(zip(tokens, served.sink.token_log_probs[request], strict=True)):
        expected = served.scores([*PROMPT, *tokens[:index]]).log_softmax(-1)
        assert told.value == pytest.approx(float(expected[token]), abs=2e-2)
        values, _ = expected.topk(3)
        assert [value for _, value in told.top] == pytest.approx(values.tolist(), abs=2e-2)


def test_a_bias_forces_a_token(served: Served) -> None:
    assert served.answer(PROMPT, 4, Sampling(top_k=1, logit_bias={7: 100.0}))[0] == [7, 7, 7, 7]


def test_a_guide_is_followed_beside_other_requests(served: Served, directory: Path) -> None:
    assert served.engine.ready.guide_types == ALL_GUIDE_TYPES
    document = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    guide = Guide("json_schema", json.dumps(document))
    beside = served.submit(PROMPT, 60)
    ids = [served.submit(PROMPT, 250, Sampling(seed=seed), guide=guide, end_id=END_ID) for seed in range(3)]
    tokenizer = Tokenizer.from_file(str(directory / "engine" / "tokenizer.json"))
    for request_id in ids:
        tokens, reason = served.sink.wait(request_id)
        if reason == "end":
            found = json.loads(tokenizer.decode([token for token in tokens if token != END_ID]))
            assert found.keys() == {"name", "age"}
    assert served.sink.wait(beside)[0] == served.generate(PROMPT, 60)
