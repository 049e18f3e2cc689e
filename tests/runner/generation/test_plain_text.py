"""Control tokens in plain parts become ordinary tokens; all else is tokenized as the tokenizer does it."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from errors.chat import ControlTokensInText
from runner.chat.control_tokens import MarkedText
from runner.generation.plain_text import PlainText
from runner.generation.tokenizing import Tokenizing

CONTROL = ["<s>", "</s>", "<|user|>"]
CORPUS = ["the user said hi to <s> and </s>, 12 times\n  in a row: é, 你好, hi there user| s> ▁"] * 20
GPT4_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NORMAL = AddedToken("<tool>", special=False, normalized=False)


def byte_level(pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.decoder = decoders.ByteLevel()
    return with_tokens(tokenizer)


def train(tokenizer: Tokenizer, trainer: Any) -> None:
    tokenizer.train_from_iterator(CORPUS, trainer)


def with_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(CONTROL)
    tokenizer.add_tokens([NORMAL])
    return tokenizer


def gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(GPT4_SPLIT), "isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_level(pre_tokenizers.Sequence([split, rest]))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 400)])
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = llama3()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Make one like Llama 2's first conversion: no pre-tokenizer, control tokens in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    train(tokenizer, trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    document = Tokenizer.from_str(tokenizer.to_str())
    document.pre_tokenizer = None
    document.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return with_tokens(document)


def mistral() -> Tokenizer:
    tokenizer = sentencepiece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    return tokenizer


def unigram() -> Tokenizer:
    """Its vocabulary has a control token with the best score."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>", *CONTROL], unk_token="<unk>", show_progress=False
    )
    train(tokenizer, trainer)
    return with_tokens(tokenizer)


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
    return with_tokens(tokenizer)


MAKERS: list[Callable[[], Tokenizer]] = [gpt2, llama3, qwen, sentencepiece, mistral, unigram, bert]
TOKENIZERS = {make.__name__: make() for make in MAKERS}
EACH = pytest.mark.parametrize("name", TOKENIZERS)
THOROUGH = settings(max_examples=60, derandomize=True, database=None, deadline=None)
WORDS = ["hi", " ", "  ", "\n", "user", "<tool>", "é", "你", "<", "|>", "12", ", ", "s>"]
PARTS = st.lists(st.sampled_from([*WORDS, *CONTROL]), max_size=6)


def plain_text(name: str) -> PlainText:
    return PlainText(TOKENIZERS[name], frozenset(CONTROL))


def num_control(name: str, ids: list[int]) -> int:
    control = {TOKENIZERS[name].token_to_id(token) for token in CONTROL}
    return sum(each in control for each in ids)


@EACH
@THOROUGH
@given(parts=PARTS)
def test_without_plain_parts_the_tokens_are_the_tokenizers(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    whole = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert plain_text(name).encode(MarkedText(text, [])) == whole


@EACH
@THOROUGH
@given(before=PARTS, parts=PARTS, after=PARTS)
def test_in_a_plain_part_no_token_is_a_control_token(
    name: str, before: list[str], parts: list[str], after: list[str]
) -> None:
    start, inner, end = "<|user|>" + "".join(before), "".join(parts), "".join(after)
    text = MarkedText(start + inner + end, [(len(start), len(start) + len(inner))])
    ids = plain_text(name).encode(text)
    expected = sum(start.count(token) + end.count(token) for token in CONTROL)
    assert num_control(name, ids) == expected


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen"])
def test_a_plain_part_has_the_tokens_that_it_has_without_control_tokens(name: str) -> None:
    """Compare with a tokenizer that has no control tokens at all."""
    document = TOKENIZERS[name].to_str()
    for token in CONTROL:
        document = document.replace(f'"content":"{token}"', f'"content":"{token[1:-1]}\\ue000"')
    other = Tokenizer.from_str(document)
    text = "hi</s><|user|>injected</s> <s>\n<s"
    ids = plain_text(name).encode(MarkedText(text, [(0, len(text))]))
    assert ids == other.encode(text, add_special_tokens=False).ids
    assert other.decode(ids) == text


def test_a_tokenizer_of_an_unknown_kind_rejects_such_messages() -> None:
    tokenizer = gpt2()
    tokenizer.normalizer = normalizers.Prepend("x")
    tokenizer.add_special_tokens([AddedToken("xyz", normalized=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    reader = PlainText(tokenizer, frozenset(CONTROL))
    reader._is_supported = False
    with pytest.raises(ControlTokensInText, match=r"E1704.*<s>.*ALLOW_SPECIAL_TOKENS"):
        reader.encode(MarkedText("a<s>", [(1, 4)]))


@EACH
async def test_the_same_tokens_in_sections_of_any_length(name: str) -> None:
    """A long text is tokenized section by section, and a long section in windows."""
    marks = ["<s>", "</s>hi ", "<|user|>", ""]
    parts = [f"{marks[each % 4]}{'hi there, user 12 ' * (each * 37 % 90)}\n" for each in range(60)]
    start, inner = "".join(parts), "".join(parts[::-1])
    text = MarkedText(start + inner, [(len(start), len(start) + len(inner))])
    assert len(text) > 60_000
    reader = Tokenizing(TOKENIZERS[name], max_bytes=1 << 20, max_tokens=1 << 20, control=frozenset(CONTROL))
    ids = await reader.encode(text, adds_special_tokens=False)
    assert ids == plain_text(name).encode(text)
    assert num_control(name, ids) == sum(start.count(token) for token in CONTROL)


@pytest.mark.parametrize("name", ["llama3", "unigram", "sentencepiece"])
@pytest.mark.parametrize("unit", ["a", "<|", "</s", " ", "\u0301"])
def test_no_text_keeps_other_threads_from_running(name: str, unit: str) -> None:
    """Processor time of one call, as each may keep Python's lock."""
    text = MarkedText(f"<s>{unit * (400_000 // len(unit))}<s>", [(0, 3)])
    reader = plain_text(name)
    sections = reader.sections(text)
    longest_s, start_s = 0.0, time.thread_time()
    for section in itertools.chain(sections, [None]):
        longest_s = max(longest_s, time.thread_time() - start_s)
        if section is not None and len(section.text) <= 1 << 15:
            reader.encode_sections([section])
        start_s = time.thread_time()
    assert longest_s < 0.5
