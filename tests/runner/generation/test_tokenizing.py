"""Prompts of any length have the tokens that the tokenizer gives them, and no prompt makes others wait."""

import asyncio
import random
import tracemalloc
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from errors.requests import PromptTooLong
from runner.engines.protocol.messages import Sampling
from runner.generation import tokenizing as module
from runner.generation import windows
from runner.generation.prompt_ids import PromptIds
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from tests import fast
from tests.runner.generation.test_plain_text import TOKENIZERS
from tests.runner.paced_engine import make_tokenizer

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
PLAIN_WORDS = "the user said hi, to é 你好 12 <s> </s> ▁ row"
WORDS = [*PLAIN_WORDS.split(), "\n", "\n\n  ", FAMILY]


def of(tokenizer: Tokenizer, max_bytes: int = 1 << 24, max_tokens: int = 1 << 24) -> Tokenizing:
    return Tokenizing(tokenizer, max_bytes=max_bytes, max_tokens=max_tokens)


def encode(tokenizing: Tokenizing, text: str, *, adds: bool = True) -> list[int]:
    return asyncio.run(tokenizing.encode(text, adds_special_tokens=adds))


def prose(size: int, seed: int = 0) -> str:
    choice = random.Random(seed)
    return " ".join(choice.choices(WORDS, k=size // 4))[:size]


def _long_texts() -> Iterator[tuple[str, str]]:
    choice = random.Random(0)
    yield "prose", prose(100_000)
    yield "one character", "a" * 100_000
    yield "spaces", " " * 70_000 + "x" + " " * 70_000
    yield "digits", "".join(choice.choices("0123456789", k=100_000))
    yield "letters without spaces", "".join(choice.choices("abcdefgh", k=100_000))
    yield "emoji", FAMILY * 20_000
    yield "lines", "\n".join(str(number) for number in range(20_000))
    yield "control tokens", "<s>hi</s>" * 10_000
    yield "one after the window", prose((1 << 15) + 1)


LONG_TEXTS = dict(_long_texts())


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", fast.few(LONG_TEXTS.values()), ids=LONG_TEXTS)
@pytest.mark.parametrize("adds", fast.few([True, False]))
def test_a_long_text_has_the_tokens_of_the_whole(
    name: str, text: str, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also wherever the windows end."""
    tokenizer = TOKENIZERS[name]
    assert encode(of(tokenizer), text, adds=adds) == tokenizer.encode(text, add_special_tokens=adds).ids
    monkeypatch.setattr(module, "_SHORT_CHARACTERS", 100)
    monkeypatch.setattr(windows, "_OVERLAP_CHARACTERS", 300)
    monkeypatch.setattr(windows, "_MARGIN_CHARACTERS", 50)
    beginning = text[:20_000] if " " in text or "\n" in text else ""
    whole = tokenizer.encode(beginning, add_special_tokens=False).ids
    for size in (1000, 1017, 1119):
        for each in (module, windows):
            monkeypatch.setattr(each, "WINDOW_CHARACTERS", size)
        assert encode(of(tokenizer), beginning, adds=False) == whole


@pytest.mark.slow
def test_a_stretch_without_any_place_to_join_is_cut_and_stays_the_same_text() -> None:
    tokenizer = TOKENIZERS["llama3"]
    text = "ab" * 400_000
    assert tokenizer.decode(encode(of(tokenizer), text, adds=False)) == text


@pytest.mark.parametrize("text", ["a" * 101, "é" * 51, "\ud800" * 34, "a" * 100_000_000])
def test_a_text_of_too_many_bytes_is_refused_before_it_is_tokenized(text: str) -> None:
    tracemalloc.start()
    with pytest.raises(PromptTooLong, match=r"E1002.*\(100 bytes\).*MAX_PROMPT_BYTES"):
        encode(of(make_tokenizer(), max_bytes=100), text)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_text_of_too_many_tokens_is_not_tokenized_to_its_end() -> None:
    with pytest.raises(PromptTooLong) as raised:
        encode(of(make_tokenizer(), max_tokens=100), "hi there " * 100_000)
    assert 200 < int(str(raised.value.facts["prompt_tokens"])) < 1 << 16


async def test_a_cancelled_request_stops_and_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text of another client has ended long before a very long one would have."""
    made = 0
    tokenizing = of(make_tokenizer())
    make = windows.Windows.make

    def counted(self: windows.Windows, start: int, end: int) -> object:
        nonlocal made
        made += 1
        return make(self, start, end)

    monkeypatch.setattr(windows.Windows, "make", counted)

    slow = asyncio.ensure_future(tokenizing.encode("hi there " * 500_000, adds_special_tokens=True))
    await asyncio.sleep(0)
    await tokenizing.encode("hi there " * 10_000, adds_special_tokens=True)
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    at_cancel = made
    await tokenizing.encode("hi there " * 10_000, adds_special_tokens=True)
    assert made <= at_cancel + 4 + 1
    assert made < 40  # Of 138.


@pytest.mark.parametrize("size", [10, 10_000, 100_000])
async def test_all_texts_of_a_request_tokenize_their_prompt_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizing = of(make_tokenizer())
    prompt = prose(size)
    calls = {name: MagicMock(wraps=getattr(tokenizing, name)) for name in ("encode_later", "encode_short")}
    for name, call in calls.items():
        monkeypatch.setattr(tokenizing, name, call)
    ids = PromptIds(prompt)
    all_ids = await asyncio.gather(*(ids.get(tokenizing) for _ in range(128)))
    assert all_ids == [tokenizing.tokenizer.encode(prompt).ids] * 128
    assert sum(call.call_count for call in calls.values()) == 1


async def test_one_cancelled_text_does_not_end_the_others() -> None:
    tokenizing = of(make_tokenizer())
    prompt = prose(200_000)

    ids = PromptIds(prompt)
    tasks = [asyncio.ensure_future(ids.get(tokenizing)) for _ in range(3)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert done[1] == done[2] == tokenizing.tokenizer.encode(prompt).ids


async def test_a_request_for_another_prompt_has_its_own_tokens() -> None:
    tokenizing = of(make_tokenizer())
    first = GenerationRequest("hi", 5, 0, (), Sampling())

    assert replace(first, max_tokens=7).prompt_ids is first.prompt_ids
    assert replace(first, adds_special_tokens=False).prompt_ids is not first.prompt_ids
    for prompt in ("hi", "you", "there " * 10_000):
        assert (
            await replace(first, prompt=prompt).prompt_ids.get(tokenizing)
            == tokenizing.tokenizer.encode(prompt).ids
        )
    assert await replace(first, prompt=[1, 2]).prompt_ids.get(tokenizing) == [1, 2]
