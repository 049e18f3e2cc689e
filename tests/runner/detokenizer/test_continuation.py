"""Text that continues a prompt, where it begins: spaces, characters of several tokens, long prompts."""

import random

import pytest

from runner.detokenizer.detokenizer import Detokenizer, context_of
from tests.runner.detokenizer.test_detokenizer import CORPUS, KINDS, check, each_kind, ids_of, streamed
from tests.runner.detokenizer.test_stages import IDS, tokenizer_with


@pytest.mark.parametrize(("before", "text"), [(["a"], " do"), ([], "do"), (["<|end|>"], "do")])
def test_a_first_space_is_dropped_only_where_no_text_precedes(before: list[str], text: str) -> None:
    tokenizer = KINDS["llama"]()
    output = tokenizer.encode("do").ids
    assert streamed(tokenizer, output, prompt=ids_of(tokenizer, *before)) == text


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_a_character_that_the_prompt_begins_comes_with_the_output(kind: str) -> None:
    tokenizer = KINDS[kind]()
    if kind == "llama":
        begun, rest, other = ids_of(tokenizer, "<0xF0>", "<0x9F>"), ids_of(tokenizer, "<0x91>", "<0xA8>"), "x"
    else:
        begun, rest, other = ids_of(tokenizer, "ð", "Ł"), ids_of(tokenizer, "ĳ", "¨"), "x"
    prompt = [*tokenizer.encode("fox").ids, *begun]
    assert streamed(tokenizer, rest, prompt=prompt) == "👨"
    assert streamed(tokenizer, ids_of(tokenizer, other), prompt=prompt) == "x"
    echoing = Detokenizer(tokenizer)
    assert echoing.follow(prompt, shows_incomplete=True) == "fox"
    assert echoing.push(ids_of(tokenizer, other)) in ("\ufffdx", "\ufffd\ufffdx")


@each_kind
def test_a_long_prompt_leaves_a_few_tokens_to_read(kind: str) -> None:
    tokenizer = KINDS[kind]()
    prompt = tokenizer.encode(" ".join(CORPUS[:2]) * 50).ids
    output = tokenizer.encode("fox ü").ids
    assert len(context_of(tokenizer, prompt)) <= (64 if kind == "bpe_with_suffix" else 20)
    check(tokenizer, prompt, output, random.Random(kind))


@pytest.mark.parametrize("before", [[], ["x"], ["<|end|>"] * 70, ["x", *["<|end|>"] * 70]])
def test_a_long_run_of_bytes_is_read_from_one_of_its_characters_on(before: list[str]) -> None:
    tokenizer = KINDS["llama"]()
    character = ids_of(tokenizer, "<0xE6>", "<0xBC>", "<0xA2>")
    for begun in range(3):
        for end in ([], ids_of(tokenizer, *["<|end|>"] * 70)):
            prompt = [*ids_of(tokenizer, *before), *character * 1000, *character[:begun], *end]
            assert len(context_of(tokenizer, prompt)) <= 128
            if not (begun and end):
                text = streamed(tokenizer, [*character[begun:], *tokenizer.encode("do").ids], prompt=prompt)
                assert text == "漢 do"


def test_bytes_that_follow_a_whole_character_do_not_undo_it() -> None:
    tokenizer = tokenizer_with("llama")
    newline, invalid = IDS["<0x0A>"], IDS["<0xFF>"]
    assert streamed(tokenizer, [invalid], prompt=[IDS["a"], newline]) == "\ufffd"
    assert streamed(tokenizer, [newline, IDS["b"]], prompt=[IDS["a"], newline]) == "\nb"
