"""Texts whose beginnings are known have the tokens that the tokenizer gives to the whole."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from runner.generation import pieces as module
from runner.generation import tokenizing
from runner.generation.pieces import Pieces
from runner.generation.tokenizing import Tokenizing
from tests.runner.generation.test_plain_text import CONTROL, THOROUGH, TOKENIZERS, byte_level

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"\p{Lm}\p{Lo}\p{M}"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTERS}]*[\p{{Ll}}{LETTERS}]+{CONTRACTIONS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTERS}]+[\p{{Ll}}{LETTERS}]*{CONTRACTIONS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> Tokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior, invert)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(pre_tokenizers.Sequence([words, letters]))


SUPPORTED = {
    **{name: TOKENIZERS[name] for name in ("gpt2", "llama3", "qwen")},
    "prefix space": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "digits": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel()])),
    "qwen2": split(f"{CONTRACTIONS}|{WORDS}|{REST}"),
    "gpt4": split(f"{CONTRACTIONS}|{WORDS}|{REST}", "removed", invert=True),
    "gpt4o": split(O200K),
}
SUPPORTED["qwen2"].normalizer = normalizers.NFC()
TEXTS = st.lists(
    st.sampled_from(
        [
            *("hi", "I'm", "we'LL", "HiYou", "12", "3456", "é", "e\u0301", "ß", "你好", "²", "Ⅷ", "_", "ǅ"),
            *(" ", " ", " ", "  ", "\n", " \n", "\t", "\u00a0", "\u3000", "\u0301", "\U0001f469\u200d"),
            *("!", "...", "/", "'", "<", "|>", "<tool>", *CONTROL),
        ]
    ),
    max_size=40,
).map("".join)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_CHARACTERS", 3)
    monkeypatch.setattr(tokenizing, "_SHORT_CHARACTERS", 8)
    monkeypatch.setattr(tokenizing, "WINDOW_CHARACTERS", 24)


@pytest.mark.parametrize("name", SUPPORTED)
@THOROUGH
@given(beginning=TEXTS, ends=st.lists(TEXTS, min_size=2, max_size=3))
def test_known_pieces_change_no_token(name: str, beginning: str, ends: list[str]) -> None:
    tokenizer = SUPPORTED[name]
    made = Tokenizing(tokenizer, max_bytes=1 << 20, max_tokens=1 << 20)
    for text in [*(beginning + end for end in ends), beginning, *(beginning + end for end in ends)]:
        for adds in (False, True):
            ids = asyncio.run(made.encode(text, adds_special_tokens=adds))
            assert ids == tokenizer.encode(text, add_special_tokens=adds).ids
        assert "".join(Pieces(tokenizer).of(text)) == text


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_prompts_have_in_common_is_tokenized_once(name: str) -> None:
    pieces = Pieces(SUPPORTED[name])
    first, second = (list(pieces.of("You are kind. " * 9 + end)) for end in ("Hi there", "Who are you?"))
    assert len(first) > 9
    assert first[:-3] == second[: len(first) - 3]


def changed(name: str, **parts: Any) -> Tokenizer:
    tokenizer = Tokenizer.from_str(TOKENIZERS[name].to_str())
    for part, value in parts.items():
        setattr(tokenizer, part, value)
    return tokenizer


def with_added(content: str) -> Tokenizer:
    tokenizer = changed("gpt2")
    tokenizer.add_tokens([AddedToken(content)])
    return tokenizer


OTHERS = {
    **{name: TOKENIZERS[name] for name in ("sentencepiece", "mistral", "unigram", "bert")},
    "another normalizer": changed("gpt2", normalizer=normalizers.Replace(" hi", "hi")),
    "no words": changed("gpt2", pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False)),
    "spaces in words": split(r"\p{L}+ \p{L}+|\s+"),
    "spaces left out": split(r"\p{N}"),
    "several words together": split(f"{WORDS}|{REST}", "merged_with_next"),
    "a token with a space": with_added("<a b>"),
    "a token of letters": with_added("hello"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tokenizers_get_the_whole_text(name: str) -> None:
    assert list(Pieces(OTHERS[name]).of("hi you there " * 9)) == ["hi you there " * 9]


def test_the_pieces_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 10)
    pieces = Pieces(TOKENIZERS["gpt2"])
    pieces.keep("first", [1])
    pieces.keep("other", [2])
    assert list(pieces.find("first") or ()) == [1]
    pieces.keep("third", [3])
    assert pieces.find("other") is None
    assert list(pieces.find("first") or ()) == [1]
    assert list(pieces.find("third") or ()) == [3]
