"""A prompt's length, whatever the server's tokenizer."""

import asyncio
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.prompt import exact_prompt

COUNTS: dict[str, Callable[[str], int]] = {
    "a token a word": lambda text: len(text.split()),
    "with a token before and one after": lambda text: len(text.split()) + 2,
    "two tokens a word, one a sign": lambda text: sum(
        1 + part.isalpha() for part in re.findall(r"\w+|\S", text)
    ),
    "bytes": lambda text: len(text.encode()),
}


@pytest.mark.parametrize("name", COUNTS)
@given(tokens=st.integers(5, 3000))
def test_the_prompt_has_exactly_as_many_tokens_as_were_asked_for(name: str, tokens: int) -> None:
    asked = 0

    async def count(text: str) -> int:
        nonlocal asked
        asked += 1
        return COUNTS[name](text)

    prompt, found = asyncio.run(exact_prompt(tokens, count))
    assert found == COUNTS[name](prompt) == tokens
    assert asked <= 32


def test_a_tokenizer_that_can_not_hit_it_gives_the_nearest() -> None:
    async def count(text: str) -> int:
        return 10 * (1 + len(text) // 20)

    _, found = asyncio.run(exact_prompt(104, count))
    assert abs(found - 104) <= 6
