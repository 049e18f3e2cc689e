"""Each fuzz target for a moment, with the same inputs each time; ``tests/fuzz/guided.py`` is the long form.

``corpus`` has a file per target of inputs that guided fuzzing kept: in base64, the fewest with all branches.
"""

import random
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fast
from tests.fuzz.targets import TARGETS

_SEED = 8
_LONGEST_BYTES = 400
_CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_small_and_random_inputs_are_taken_or_refused(name: str) -> None:
    place = TARGETS[name]
    target, chance = place.load(name), random.Random(_SEED)

    @settings(max_examples=fast.num_examples(40), deadline=None)
    @given(data=st.binary(max_size=64))
    def run(data: bytes) -> None:
        target(data)

    run()
    for _ in range(fast.num_examples(place.examples)):
        target(chance.randbytes(chance.randrange(_LONGEST_BYTES)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(each.stem for each in _CORPUS.iterdir()))
def test_what_guided_fuzzing_kept_is_taken_or_refused(name: str) -> None:
    target = TARGETS[name].load(name)
    for line in (_CORPUS / f"{name}.txt").read_text().splitlines():
        target(b64decode(line))
