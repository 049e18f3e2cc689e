"""StopFilter against its definition: cut the whole text where the first stop sequence begins."""

import random
import tracemalloc
from collections.abc import Iterator
from os.path import commonprefix
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from errors.requests import InvalidInput
from runner.detokenizer.detokenizer import Detokenizer
from runner.generation.stop_filter import StopFilter
from runner.generation.stop_sequences import MAX_STOP_BYTES, MAX_STOPS, SearchState, StopSequences

THOROUGH = settings(max_examples=400, derandomize=True, database=None, deadline=None)
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
NOWHERE = "\u2603"
"""A character that stands in none of the texts and stop sequences."""

ALPHABETS = ["a", "ab", "aab", "abc", "\n:U", "é\u0301e", "👨\u200d👩👧", "[]^-\\&&~|.*$( "]


def naive_cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return the text before the first stop sequence, and the shortest one that begins there."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def certain_prefix(text: str, stops: list[str]) -> str:
    """Return what every continuation of ``text`` leaves standing, by trying all that can matter."""
    endings = {stop[index:] for stop in stops for index in range(len(stop))}
    return commonprefix([naive_cut(text + ending, stops)[0] for ending in ["", NOWHERE, *endings]])


def chunks_of(text: str, sizes: list[int]) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = sizes.pop(0) if sizes else 1
        yield text[at : at + size]
        at += size


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Stop sequences, and a text over the same few characters in chunks."""
    alphabet = st.sampled_from(draw(st.sampled_from(ALPHABETS)))
    stops = draw(st.lists(st.text(alphabet, max_size=6), max_size=5))
    text = draw(st.text(alphabet, max_size=30))
    if draw(st.booleans()) and stops:
        text += draw(st.sampled_from(stops)) + draw(st.text(alphabet, max_size=5))
    return stops, list(chunks_of(text, draw(st.lists(st.integers(0, 7), max_size=20))))


@THOROUGH
@given(cases())
@example((["\n\nUser:"], list("Hi!\n\nUser: more")))
@example((["", ""], ["any text"]))
@example((["abcd", "bc"], ["ab", "c", "d"]))
@example((["abcd", "bc"], ["ab", "c", "x"]))
@example((["abcd", "bc"], ["ab", "c"]))
@example((["abcd", "bc"], ["xabc", "!"]))
@example((["abcd", "bc"], ["xabc", "d!"]))
@example((["abcd", "bc"], ["xabc"]))
@example((["abcde", "bcdx", "cd"], ["a", "b", "c", "d", "x"]))
@example((["aaab", "aa"], ["a", "a", "a", "c"]))
def test_each_push_shows_exactly_what_is_certain_and_all_of_them_equal_the_naive_cut(
    case: tuple[list[str], list[str]],
) -> None:
    stops, chunks = case
    stop_filter = StopFilter(stops)
    seen = shown = ""
    for chunk in chunks:
        seen += chunk
        shown += stop_filter.push(chunk)
        certain = certain_prefix(seen, stops)
        assert shown == certain
        cut, stop = naive_cut(seen, stops)
        # A match is settled once the cut is the same whatever follows.
        assert (stop_filter.matched is not None) == (stop is not None and cut == certain)
        if stop_filter.matched is None:
            assert len(seen) - len(shown) < max([1, *map(len, stops)])
    shown += stop_filter.finish()
    assert (shown, stop_filter.matched) == naive_cut(seen, stops)


@THOROUGH
@given(cases())
def test_behind_a_detokenizer_equals_cutting_the_decoded_whole(case: tuple[list[str], list[str]]) -> None:
    """Tokens of one byte each, so that stop sequences and characters come in parts; the first is lost."""
    stops, chunks = case
    tokenizer = Tokenizer(
        models.BPE({token: at for at, token in enumerate(sorted(BYTE_LEVEL.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = BYTE_LEVEL, decoders.ByteLevel()
    ids = tokenizer.encode("".join(chunks)).ids[1:]
    detokenizer, stop_filter = Detokenizer(tokenizer), StopFilter(stops)
    shown = "".join(stop_filter.push(detokenizer.push([token_id])) for token_id in ids)
    shown += stop_filter.push(detokenizer.finish()) + stop_filter.finish()
    assert (shown, stop_filter.matched) == naive_cut(tokenizer.decode(ids), stops)


def test_the_work_per_character_does_not_grow_with_the_stop_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worst text for a search that starts over: every position begins a long stop sequence."""
    stops = ["a" * 500 + "b", "a" * 499 + "c", "aab"]
    lookups = 0

    class Counting(dict[str, SearchState | None]):
        def __contains__(self, key: object) -> bool:
            nonlocal lookups
            lookups += 1
            return super().__contains__(key)

    make = SearchState.__init__

    def make_counting(state: SearchState, *arguments: Any) -> None:
        make(state, *arguments)
        state._children = Counting(state._children)

    monkeypatch.setattr(SearchState, "__init__", make_counting)
    stop_filter = StopFilter(stops)
    text = "a" * 5000
    shown = "".join(stop_filter.push(character) for character in text) + stop_filter.finish()
    assert shown == text
    assert len(text) <= lookups <= 2 * len(text) + 2 * 500  # The latter to make the states.


@pytest.mark.parametrize(
    "stops",
    [
        ["a"] * (MAX_STOPS + 1),
        ["a" * (MAX_STOP_BYTES + 1)],
        ["é" * (MAX_STOP_BYTES // 2 + 1)],
        ["\ud800" * 1_000_000],
        [str(number) for number in range(100_000)],
    ],
    ids=["one too many", "one byte too long", "not ASCII", "1 MB", "100,000"],
)
def test_too_many_or_too_long_ones_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidInput, match="at most"):
        StopSequences(stops)


@pytest.mark.parametrize("size", [MAX_STOPS * (MAX_STOP_BYTES + 1) + 1, 5_000_000])
def test_a_text_of_commas_is_refused_before_it_is_split(size: int) -> None:
    with pytest.raises(InvalidInput, match="at most"):
        StopSequences.split("," * size)


@pytest.mark.slow
def test_the_largest_that_are_taken_cost_memory_only_as_far_as_a_text_follows_them() -> None:
    choice = random.Random(0)
    stops = StopSequences("".join(choice.choices("ab", k=MAX_STOP_BYTES)) for _ in range(MAX_STOPS))
    tracemalloc.start()
    filters = [StopFilter(stops) for _ in range(128)]
    text = stops[0][:-1] + "c"
    for stop_filter in filters:
        assert stop_filter.push(text) + stop_filter.finish() == text
    assert tracemalloc.get_traced_memory()[0] < 16 << 20
    tracemalloc.stop()
