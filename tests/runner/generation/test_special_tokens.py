"""A client that asks for the model's special tokens reads them in the text, however the tokens arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable

import pytest

from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import Output, Sampling, Submit
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from tests.runner.paced_engine import END_ID, make_tokenizer

TOKENIZER = make_tokenizer()
TOKENIZER.add_special_tokens(["[TOOL_CALLS]", "<|im_end|>"])
TOKENIZING = Tokenizing(TOKENIZER, max_bytes=1000, max_tokens=63)
MODEL = ModelFacts(TOKENIZING, (END_ID,), END_ID, 64, 63, ChatTemplate({}, {}))
IDS = TOKENIZER.encode("hi [TOOL_CALLS]é[TOOL_CALLS]<|im_end|> hi<|im_end|>", add_special_tokens=False).ids


class Tokens:
    """Emits chunks of tokens, as an engine does."""

    def __init__(self, chunks: Iterable[list[int]]) -> None:
        self._chunks = list(chunks)

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        *rest, last = self._chunks
        for chunk in rest:
            yield Output(chunk, [], None)
        yield Output(last, [], "length")


def text_of(chunks: Iterable[list[int]], *, skips: bool, stops: tuple[str, ...] = ()) -> str:
    sampling = Sampling(temperature=0)
    request = GenerationRequest("hi", 60, 0, stops, sampling, skips_special_tokens=skips)

    async def read() -> str:
        return "".join([text async for text in Generation(request, MODEL, Tokens(chunks)).text()])

    return asyncio.run(read())


def splits() -> Iterable[list[list[int]]]:
    """IDS in chunks, cut at every two places."""
    for first, second in itertools.combinations(range(1, len(IDS)), 2):
        yield [IDS[:first], IDS[first:second], IDS[second:]]
    yield [[each] for each in IDS]
    yield [IDS]


@pytest.mark.parametrize("skips", [True, False])
def test_the_text_of_every_split_is_that_of_decoding_at_once(skips: bool) -> None:
    whole = TOKENIZER.decode(IDS, skip_special_tokens=skips)
    assert ("[TOOL_CALLS]" in whole) != skips
    assert {text_of(chunks, skips=skips) for chunks in splits()} == {whole}


def test_a_stop_sequence_may_be_a_special_token_then() -> None:
    whole = TOKENIZER.decode(IDS, skip_special_tokens=False)
    before = whole[: whole.index("<|im_end|>")]
    assert {text_of(chunks, skips=False, stops=("<|im_end|>",)) for chunks in splits()} == {before}


def test_the_end_token_has_no_text() -> None:
    assert text_of([[*IDS, END_ID]], skips=False) == TOKENIZER.decode(IDS, skip_special_tokens=False)
