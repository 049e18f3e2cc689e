"""What a request becomes for the engine server."""

from __future__ import annotations

import math
from dataclasses import replace

from runner.engines.protocol.messages import Sampling
from runner.generation.inputs import submit_message
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from tests.runner.paced_engine import END_ID, make_tokenizer


def test_numbers_are_those_of_32_bit_floats() -> None:
    """A temperature that is 0 in the engine must be greedy: the engine would divide by it."""
    tokenizing = Tokenizing(make_tokenizer(), max_bytes=1 << 16, max_tokens=63)
    model = ModelFacts(tokenizing, (END_ID,), END_ID, 64, 63, None)
    sampling = Sampling(temperature=1e-60, repetition_penalty=1e-60, presence_penalty=1e300, top_p=0.9)
    submit = submit_message(GenerationRequest("hi", 5, 0, (), sampling), model, [5])
    assert submit.sampling.is_greedy
    assert submit.sampling.repetition_penalty == 0
    assert submit.sampling.presence_penalty == math.inf
    assert 0 < abs(submit.sampling.top_p - 0.9) < 1e-7


def test_the_engine_knows_all_tokens_that_end_the_text() -> None:
    """So it does not generate them before ``min_tokens``."""
    tokenizing = Tokenizing(make_tokenizer(), max_bytes=1 << 16, max_tokens=63)
    model = ModelFacts(tokenizing, (7, 8, 9), END_ID, 64, 63, None)
    request = GenerationRequest("hi", 5, 2, (), Sampling())
    submit = submit_message(request, model, [5])
    assert (submit.end_id, submit.stop_words) == (7, [[8], [9]])
    ignoring = replace(request, ignores_end=True)
    submit = submit_message(ignoring, model, [5])
    assert (submit.end_id, submit.stop_words) == (None, [])
    submit = submit_message(replace(ignoring, stop_token_ids=(8, 9, 1 << 30)), model, [5])
    assert submit.stop_words == [[8], [9]]
