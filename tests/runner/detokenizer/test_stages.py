"""Each decoder of the ``tokenizers`` library and odd chains of them, over tokens chosen to be awkward."""

import itertools
import random
from functools import cache
from os.path import commonprefix
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from runner.detokenizer.detokenizer import Detokenizer
from runner.detokenizer.plan import decoding_plan
from tests import fast
from tests.runner.detokenizer.test_detokenizer import check, streamed

RANDOM_SEQUENCES = 2500

AWKWARD_TOKENS = [
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("", " ", "  ", "a", "b", "ab", "aab", "x", "{}", ".", "?", "'", "n't", "'s", "do not", " do not"),
    "a .",
    *("▁", "▁a", "▁▁", "▁.", "##a", "##", "##.", "</w>", "a</w>", "a</w> b", "</w></w>", "|", "<pad>"),
    "a<pad>",
    *["Ġ", "Ġa", "Ċ", "ä½łå¥½", "ä", "½", "ł", "ð", "Ł", "ĺ", "é", "aé b", "你", "👨", "\u200d", "\ufffd"],
    *["<0x+5>", "<0xfe>", "<0xg0>", "<0xé>", "<0x411>", "<unk>"],
]
IDS = {token: token_id for token_id, token in enumerate(AWKWARD_TOKENS)}
TELLING = [
    IDS[token] for token in ["", "a", "b", "aab", "x", " ", "▁", "</w>", "<0x41>", "<0x80>", "<0xFF>", "ĺ"]
]

LLAMA: list[Any] = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


class Reversing:
    """A decoder written in Python, of whose output nothing is certain before the end."""

    def decode_chain(self, tokens: list[str]) -> list[str]:
        return tokens[::-1]


def chain(*parts: Any) -> Any:
    return decoders.Sequence(list(parts))


STREAMED = {
    "nothing": None,
    "byte level": decoders.ByteLevel(),
    "byte level, fused": chain(decoders.Replace("x", "Ġ"), decoders.ByteLevel(), decoders.Fuse()),
    "llama": chain(*LLAMA),
    "gemma": chain(*LLAMA[:3]),
    "llama nested": chain(LLAMA[0], chain(chain(*LLAMA[1:3]), LLAMA[3])),
    "byte fallback": decoders.ByteFallback(),
    "metaspace": decoders.Metaspace(),
    "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace with a letter": decoders.Metaspace(replacement="a"),
    "word piece": decoders.WordPiece(),
    "word piece without cleanup": decoders.WordPiece(prefix="▁", cleanup=False),
    "word piece with a letter": decoders.WordPiece(prefix="a"),
    "empty chain": chain(),
    "fuse alone": decoders.Fuse(),
    "replace alone": decoders.Replace("", "z"),
    "byte fallback, metaspace": chain(decoders.ByteFallback(), decoders.Metaspace()),
    "metaspace, byte fallback": chain(decoders.Metaspace(), *LLAMA[1:3]),
    "strip of the text": chain(decoders.Fuse(), decoders.Strip("a", 3, 0)),
    "regex per token": chain(decoders.Replace(Regex("[ab]+"), "<0x41>"), decoders.ByteFallback()),
}
DECODED_AT_END = {
    "bpe": decoders.BPEDecoder(),
    "bpe with a letter": decoders.BPEDecoder("a"),
    "ctc": decoders.CTC(),
    "ctc without cleanup": decoders.CTC(cleanup=False),
    "ctc, word piece": chain(decoders.CTC(), decoders.WordPiece()),
    "byte fallback, byte level": chain(decoders.ByteFallback(), decoders.ByteLevel(), decoders.Fuse()),
    "strip per token": chain(decoders.Strip("a", 2, 0), decoders.Replace("", "z")),
    "metaspace of the text": chain(decoders.Fuse(), decoders.Metaspace()),
    "replace in the text": chain(decoders.ByteLevel(), decoders.Replace("aab", ""), LLAMA[3]),
    "bpe, strip of the text": chain(decoders.BPEDecoder("a"), decoders.Fuse(), LLAMA[3]),
    "regex in the text": chain(decoders.Fuse(), decoders.Replace(Regex("a+b?"), "R")),
    "word piece of the text": chain(decoders.Fuse(), decoders.WordPiece()),
    "bpe in the middle": chain(decoders.BPEDecoder(), decoders.Replace("a ", "z")),
    "python": decoders.Decoder.custom(Reversing()),
}


@cache
def tokenizer_with(name: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = (STREAMED | DECODED_AT_END)[name]
    # What decoding sees of a normalized one is its normalized form, which is how it escapes being special.
    tokenizer.add_tokens([AddedToken("Added One"), AddedToken("þ"), AddedToken("</w>tail", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<end>", normalized=False), AddedToken("<Sp>", normalized=True)])
    return tokenizer


@pytest.mark.parametrize("name", STREAMED | DECODED_AT_END)
def test_random_streams_equal_decoding_at_once_also_after_a_prompt(name: str) -> None:
    tokenizer = tokenizer_with(name)
    choice = random.Random(name)
    everything = range(tokenizer.get_vocab_size() + 2)
    for _ in range(fast.num_examples(RANDOM_SEQUENCES)):
        drawn_from = choice.choice([everything, everything[256:], choice.sample(everything, 6), TELLING])
        prompt, output = (choice.choices(drawn_from, k=choice.randrange(16)) for _ in range(2))
        if choice.random() < 0.4 or ("byte fallback" in name and tokenizer.decode(prompt).endswith("\ufffd")):
            prompt = []  # No tokenizer writes spaces between bytes.
        check(tokenizer, prompt, output, choice)


@pytest.mark.parametrize("name", STREAMED)
def test_all_text_that_no_further_token_changes_is_out(name: str) -> None:
    """Certain is what decoding leaves standing whatever follows: here, every token and every pair of some."""
    tokenizer = tokenizer_with(name)
    choice = random.Random(name)
    endings = [
        [],
        *([token_id] for token_id in range(len(IDS))),
        *map(list, itertools.product(TELLING, TELLING)),
    ]
    endings += [[IDS["Ł"], IDS["ĺ"], IDS["ĺ"]], [IDS["ĺ"], IDS["ĺ"]]]
    # Without the byte tokens that begin longer characters: these endings would not complete them.
    drawn_from = [*range(0xE0), *range(256, tokenizer.get_vocab_size())]
    for _ in range(fast.num_examples(25)):
        ids = choice.choices(drawn_from, k=choice.randrange(6))
        certain = commonprefix([tokenizer.decode(ids + ending) for ending in endings])
        detokenizer = Detokenizer(tokenizer)
        assert "".join(detokenizer.push([each]) for each in ids) == certain


def test_bytes_become_text_as_the_library_does_it() -> None:
    """All sequences of up to three bytes, and many of more, from each class that UTF-8 tells apart."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = {byte: chr(byte) for byte in range(0xC0, 0x100)}  # Those that stand for themselves.
    for character in map(chr, range(0x800)):
        tokens.update(zip(character.encode(), byte_level.pre_tokenize_str(character)[0][0], strict=True))
    tokenizer = Tokenizer(models.WordLevel({token: byte for byte, token in tokens.items()}, unk_token="a"))
    tokenizer.decoder = decoders.ByteLevel()
    edges = bytes.fromhex("41 80 8F 90 9F A0 BF C1 C2 DF E0 E1 EC ED EE EF F0 F1 F3 F4 F5 FF")
    choice = random.Random(0)
    short = itertools.chain.from_iterable(itertools.product(edges, repeat=length) for length in (1, 2, 3))
    longer = (choice.choices(edges, k=choice.randrange(4, 9)) for _ in range(fast.num_examples(8000)))
    for ids in map(list, itertools.chain(short, longer)):
        whole = tokenizer.decode(ids)
        assert whole == bytes(ids).decode("utf-8", "replace")
        assert streamed(tokenizer, ids) == whole


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize(
    "parts", [["b", "aab", "a"], ["aab", "a", "x", "a", "a", "a"], ["b", "aab", "a", "x", "a"]]
)
def test_strip_at_the_end_of_the_text(stop: int, parts: list[str]) -> None:
    """Not in the random streams: the library panics when a text is shorter than what Strip may take."""
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 1, stop)])
    ids = [IDS[part] for part in parts]
    for length in range(1, len(ids) + 1):
        assert streamed(tokenizer, ids[:length]) == tokenizer.decode(ids[:length])


def test_streams_of_one_tokenizer_share_its_plan_and_not_their_state() -> None:
    tokenizer = tokenizer_with("llama")
    one, other = Detokenizer(tokenizer), Detokenizer(tokenizer)
    assert decoding_plan(tokenizer, True) is decoding_plan(tokenizer, True)
    assert (one.push([IDS["<0x41>"]]), other.push([IDS["x"]])) == ("", "x")
    assert (one.finish(), other.finish()) == ("A", "")


def test_the_table_holds_only_ids_of_the_vocabulary() -> None:
    tokenizer = tokenizer_with("metaspace")
    Detokenizer(tokenizer).push([10**6, 10**7, 2**32 - 1, IDS["a"]])
    table = decoding_plan(tokenizer, True).token_texts
    assert IDS["a"] in table
    assert all(token_id < tokenizer.get_vocab_size() for token_id in table)
