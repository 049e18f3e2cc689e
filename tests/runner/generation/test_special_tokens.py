"""A client that asks for the model's special tokens reads them in the text, however the tokens arrive."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from tests.runner.generation.outputs import generate, in_chunks, model_of
from tests.runner.paced_engine import END_ID, make_tokenizer

TOKENIZER = make_tokenizer()
TOKENIZER.add_special_tokens(["[TOOL_CALLS]", "<|im_end|>"])
MODEL = model_of(TOKENIZER, (END_ID,))
IDS = TOKENIZER.encode("hi [TOOL_CALLS]é[TOOL_CALLS]<|im_end|> hi<|im_end|>", add_special_tokens=False).ids


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
    assert {generate(MODEL, in_chunks(chunks), skips_special_tokens=skips)[0] for chunks in splits()} == {
        whole
    }


def test_a_stop_that_begins_with_a_special_token_is_found_after_bytes_that_are_no_character() -> None:
    cut = TOKENIZER.encode("é", add_special_tokens=False).ids[:-1]
    ids = [*cut, *TOKENIZER.encode("[TOOL_CALLS] hi", add_special_tokens=False).ids]
    for chunks in ([ids], [[each] for each in ids]):
        text, generation = generate(MODEL, in_chunks(chunks), stop_sequences=("[TOOL_CALLS] h",))
        assert (text, generation.finish_reason) == ("\N{REPLACEMENT CHARACTER}", "stop")


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize(
    "stop",
    [
        *("<|im_end|>", "[TOOL_CALLS]", "é[TOOL_CALLS]", "[TOOL_CALLS]é", "i [TOOL_CALLS]é[TOOL_CALLS]<"),
        *("[TOOL_CALLS]<|im_end|> h", "<|im_end|> hi<|im_end|>"),
    ],
)
def test_a_stop_sequence_may_have_special_tokens(stop: str, skips: bool) -> None:
    """They are found where they are tokens, whether the text shows them or not."""
    shown = TOKENIZER.decode(IDS, skip_special_tokens=False)
    before = shown[: shown.index(stop)] if stop in shown else shown
    if skips:
        before = before.replace("[TOOL_CALLS]", "").replace("<|im_end|>", "")
    is_found = stop in shown and not (skips and stop.endswith("<"))
    lengths = range(1, len(IDS) + 1)
    num_until = next((k for k in lengths if stop in TOKENIZER.decode(IDS[:k], skip_special_tokens=False)), 0)
    for chunks in splits():
        text, generation = generate(
            MODEL, in_chunks(chunks), stop_sequences=("zz", stop), skips_special_tokens=skips
        )
        if is_found:
            found = (text, generation.stop_sequence, generation.finish_reason)
            assert found == (before, stop, "stop")
            assert generation.output_token_count == num_until, "tokens after the stop do not count"
        else:
            assert generation.finish_reason == "length"


def test_ordinary_tokens_that_spell_a_special_one_stop_too() -> None:
    plain = [each for character in "a<|im_end|>b" for each in TOKENIZER.encode(character).ids]
    assert TOKENIZER.decode(plain) == "a<|im_end|>b"
    for stop, before in (("<|im_end|>", "a"), ("a<|im_end|>", "")):
        assert generate(MODEL, in_chunks([plain]), stop_sequences=(stop,))[0] == before


@pytest.mark.parametrize("skips", [True, False])
def test_stop_token_ids_end_the_text_from_min_tokens_on(skips: bool) -> None:
    (hi,) = TOKENIZER.encode("é", add_special_tokens=False).ids[-1:]
    before = IDS[: IDS.index(hi)]
    fields: dict[str, Any] = {"stop_token_ids": (hi, 10_000), "skips_special_tokens": skips}
    for chunks in splits():
        text, generation = generate(MODEL, in_chunks(chunks), **fields)
        assert text == TOKENIZER.decode(before, skip_special_tokens=skips)
        assert (generation.finish_reason, generation.stop_sequence) == ("stop", None)
        assert generation.output_token_count == len(before) + 1
        _, generation = generate(MODEL, in_chunks(chunks), **fields, min_tokens=len(IDS))
        assert generation.finish_reason == "length"


def test_the_end_token_has_no_text() -> None:
    text, _ = generate(MODEL, in_chunks([[*IDS, END_ID]]), skips_special_tokens=False)
    assert text == TOKENIZER.decode(IDS, skip_special_tokens=False)
