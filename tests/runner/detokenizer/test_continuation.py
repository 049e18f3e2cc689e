"""Text that continues a prompt is that of both without that of the prompt, for tokenizers of every kind."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from runner.detokenizer.detokenizer import Detokenizer, context_of
from tests import fast
from tests.runner.detokenizer.test_detokenizer import CORPUS, KINDS, each_kind, ids_of
from tests.runner.detokenizer.test_stages import DECODED_AT_END, IDS, STREAMED, TELLING, tokenizer_with

RANDOM_SEQUENCES = 1500


def continued(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], size: int = 1, *, skips: bool = True
) -> str:
    """Return the text of ``output``, pushed ``size`` tokens at a time."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skips)
    detokenizer.follow(context_of(tokenizer, prompt, skip_special_tokens=skips))
    pushes = [detokenizer.push(output[start : start + size]) for start in range(0, len(output), size)]
    return "".join(pushes) + detokenizer.finish()


def check(tokenizer: Tokenizer, prompt: list[int], output: list[int], size: int, *, skips: bool) -> None:
    before = tokenizer.decode(prompt, skip_special_tokens=skips)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skips)
    text = continued(tokenizer, prompt, output, size, skips=skips)
    if whole.startswith(before):
        assert text == whole[len(before) :], (prompt, output)
    elif "\ufffd" not in whole:  # The output completes a character of the prompt.
        assert whole.endswith(text), (prompt, output)
        assert before.startswith(whole.removesuffix(text)) or "\ufffd" in before, (prompt, output)


@each_kind
def test_text_after_random_prompts_continues_them(kind: str) -> None:
    tokenizer = KINDS[kind]()
    choice = random.Random(kind)
    texts = [tokenizer.encode(text).ids for text in CORPUS]
    everything = range(tokenizer.get_vocab_size() + 2)
    for _ in range(fast.num_examples(RANDOM_SEQUENCES)):
        prompt = choice.choice(texts) * choice.randrange(3) + choice.choices(
            everything, k=choice.randrange(6)
        )
        ids = choice.choice(texts)
        cut = choice.randrange(len(ids) + 1)
        output = [*ids[cut : cut + choice.randrange(8)], *choice.choices(everything, k=choice.randrange(5))]
        prompt += ids[:cut] if choice.random() < 0.7 else []
        check(tokenizer, prompt, output, choice.choice([1, 2, 100]), skips=choice.random() < 0.7)


@pytest.mark.parametrize("name", STREAMED | DECODED_AT_END)
def test_any_chain_of_decoders_continues_prompts(name: str) -> None:
    tokenizer = tokenizer_with(name)
    choice = random.Random(name)
    everything = range(tokenizer.get_vocab_size() + 2)
    for _ in range(fast.num_examples(RANDOM_SEQUENCES)):
        drawn_from = choice.choice([everything, everything[256:], choice.sample(everything, 6), TELLING])
        prompt, output = (choice.choices(drawn_from, k=choice.randrange(16)) for _ in range(2))
        if "byte fallback" in name and tokenizer.decode(prompt).endswith("\ufffd"):
            continue  # No tokenizer writes spaces between bytes.
        check(tokenizer, prompt, output, choice.choice([1, 2, 100]), skips=choice.random() < 0.7)


@pytest.mark.parametrize(("before", "text"), [(["a"], " do"), ([], "do"), (["<|end|>"], "do")])
def test_a_first_space_is_dropped_only_where_no_text_precedes(before: list[str], text: str) -> None:
    tokenizer = KINDS["llama"]()
    output = tokenizer.encode("do").ids
    assert continued(tokenizer, ids_of(tokenizer, *before), output) == text


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_a_character_that_the_prompt_begins_comes_with_the_output(kind: str) -> None:
    tokenizer = KINDS[kind]()
    if kind == "llama":
        begun, rest, other = ids_of(tokenizer, "<0xF0>", "<0x9F>"), ids_of(tokenizer, "<0x91>", "<0xA8>"), "x"
    else:
        begun, rest, other = ids_of(tokenizer, "ð", "Ł"), ids_of(tokenizer, "ĳ", "¨"), "x"
    prompt = [*tokenizer.encode("fox").ids, *begun]
    assert continued(tokenizer, prompt, rest) == "👨"
    assert continued(tokenizer, prompt, ids_of(tokenizer, other)) == "x"
    echoing = Detokenizer(tokenizer)
    assert echoing.follow(prompt, shows_incomplete=True) == "fox"
    assert echoing.push(ids_of(tokenizer, other)) in ("\ufffdx", "\ufffd\ufffdx")


@each_kind
def test_a_long_prompt_leaves_a_few_tokens_to_read(kind: str) -> None:
    tokenizer = KINDS[kind]()
    prompt = tokenizer.encode(" ".join(CORPUS[:2]) * 50).ids
    output = tokenizer.encode("fox ü").ids
    assert len(context_of(tokenizer, prompt)) <= (64 if kind == "bpe_with_suffix" else 20)
    check(tokenizer, prompt, output, 1, skips=True)


@pytest.mark.parametrize("before", [[], ["x"], ["<|end|>"] * 70, ["x", *["<|end|>"] * 70]])
def test_a_long_run_of_bytes_is_read_from_one_of_its_characters_on(before: list[str]) -> None:
    tokenizer = KINDS["llama"]()
    character = ids_of(tokenizer, "<0xE6>", "<0xBC>", "<0xA2>")
    for begun in range(3):
        for end in ([], ids_of(tokenizer, *["<|end|>"] * 70)):
            prompt = [*ids_of(tokenizer, *before), *character * 1000, *character[:begun], *end]
            assert len(context_of(tokenizer, prompt)) <= 128
            if not (begun and end):
                text = continued(tokenizer, prompt, [*character[begun:], *tokenizer.encode("do").ids])
                assert text == "漢 do"


def test_bytes_that_follow_a_whole_character_do_not_undo_it() -> None:
    tokenizer = tokenizer_with("llama")
    newline, invalid = IDS["<0x0A>"], IDS["<0xFF>"]
    assert continued(tokenizer, [IDS["a"], newline], [invalid]) == "\ufffd"
    assert continued(tokenizer, [IDS["a"], newline], [newline, IDS["b"]]) == "\nb"
