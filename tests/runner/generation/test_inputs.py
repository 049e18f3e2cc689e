"""What a request becomes for the engine server."""

import math

from msgspec.structs import replace

from runner.engines.protocol.messages import Sampling
from runner.generation.inputs import submit_message
from tests.runner.generation.outputs import model_of, request_of
from tests.runner.paced_engine import make_tokenizer


def test_numbers_are_those_of_32_bit_floats() -> None:
    """A temperature that is 0 in the engine must be greedy: the engine would divide by it."""
    sampling = Sampling(temperature=1e-60, repetition_penalty=1e-60, presence_penalty=1e300, top_p=0.9)
    submit = submit_message(request_of(sampling=sampling), model_of(make_tokenizer()), [5])
    assert submit.sampling.is_greedy
    assert submit.sampling.repetition_penalty == 0
    assert submit.sampling.presence_penalty == math.inf
    assert 0 < abs(submit.sampling.top_p - 0.9) < 1e-7


def test_the_engine_knows_all_tokens_that_end_the_text() -> None:
    """So it does not generate them before ``min_tokens``."""
    model, request = model_of(make_tokenizer(), (7, 8, 9)), request_of(min_tokens=2)
    submit = submit_message(request, model, [5])
    assert (submit.end_id, submit.stop_words) == (7, [[8], [9]])
    ignoring = replace(request, ignores_end=True)
    submit = submit_message(ignoring, model, [5])
    assert (submit.end_id, submit.stop_words) == (None, [])
    submit = submit_message(replace(ignoring, stop_token_ids=(8, 9, 1 << 30)), model, [5])
    assert submit.stop_words == [[8], [9]]
