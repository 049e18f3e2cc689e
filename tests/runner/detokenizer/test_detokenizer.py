"""The detokenizer against ``Tokenizer.decode`` of the whole, with trained tokenizers of every kind."""

import itertools
import random
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from runner.detokenizer.detokenizer import Detokenizer, context_of
from runner.detokenizer.stages import Stage
from tests import fast

RANDOM_SEQUENCES = 3000

EMOJI = [
    *("👨\u200d👩\u200d👧\u200d👦", "👩🏽\u200d🚀"),
    *("🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "🇫🇷🇯🇵", "❤\ufe0f\u200d🔥"),
    "1\ufe0f\u20e3",
]
CORPUS = [
    "The quick brown fox doesn't jump over the lazy dog, do not ask why!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ",
    "자음과 모음이 만나 글자가 된다. نص حكيم له سر قاطع",
    *EMOJI,
]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("Added One"), AddedToken("þ"), AddedToken("<|tool|>", normalized=False)])
    tokenizer.add_special_tokens(
        [AddedToken("<|end|>", normalized=False), AddedToken("<Sp>", normalized=True)]
    )
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added_tokens(tokenizer)


def llama() -> Tokenizer:
    """SentencePiece-like. Its vocabulary lacks nearly all letters outside ASCII: bytes stand in for them."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(
        [*(text.encode("ascii", "ignore").decode() for text in CORPUS), "日本ü"],
        trainers.BpeTrainer(vocab_size=150, show_progress=False),
    )
    pieces = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", *BYTE_TOKENS, *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return with_added_tokens(tokenizer)


def unigram_metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added_tokens(tokenizer)


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=350, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added_tokens(tokenizer)


def bpe_with_suffix() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added_tokens(tokenizer)


def word_level() -> Tokenizer:
    """No decoder at all: decoding puts a space between the tokens."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added_tokens(tokenizer)


KINDS = {
    make.__name__: cache(make)
    for make in (byte_level, llama, unigram_metaspace, word_piece, bpe_with_suffix, word_level)
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    ids = {token: tokenizer.token_to_id(token) for token in tokens}
    known = {token: token_id for token, token_id in ids.items() if token_id is not None}
    return [known[token] for token in tokens]


def streamed(
    tokenizer: Tokenizer,
    ids: list[int],
    size: int = 1,
    *,
    prompt: list[int] | None = None,
    skips: bool = True,
) -> str:
    """Return the text of ``ids`` after ``prompt``, pushed ``size`` tokens at a time."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skips)
    if prompt:
        detokenizer.follow(context_of(tokenizer, prompt, skip_special_tokens=skips))
    pushes = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    return "".join(pushes) + detokenizer.finish()


def check(tokenizer: Tokenizer, prompt: list[int], output: list[int], choice: random.Random) -> None:
    """Compare the text of ``output`` with that of both without that of ``prompt``."""
    size, skips = choice.choice([1, 1, 2, 3, 100]), choice.random() < 0.7
    before = tokenizer.decode(prompt, skip_special_tokens=skips)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skips)
    text = streamed(tokenizer, output, size, prompt=prompt, skips=skips)
    if whole.startswith(before):
        assert text == whole[len(before) :], (prompt, output)
    elif "\ufffd" not in whole:  # The output completes a character of the prompt.
        assert whole.endswith(text), (prompt, output)
        assert before.startswith(whole.removesuffix(text)) or "\ufffd" in before, (prompt, output)


@each_kind
def test_thousands_of_random_streams_equal_decoding_at_once_also_after_a_prompt(kind: str) -> None:
    """Random ids between pieces of encoded text, so that characters are both whole and broken."""
    tokenizer = KINDS[kind]()
    texts = [tokenizer.encode(text).ids for text in CORPUS]
    everything = [*range(tokenizer.get_vocab_size() + 2), 2**32 - 1]
    choice = random.Random(kind)
    for _ in range(fast.num_examples(RANDOM_SEQUENCES)):
        ids: list[int] = []
        for _ in range(choice.randrange(5)):
            text = choice.choice(texts)
            at = choice.randrange(len(text))
            ids += text[at : at + choice.randrange(10)] + choice.choices(everything, k=choice.randrange(4))
        cut = choice.choice([0, choice.randrange(len(ids) + 1)])
        before = choice.choice(texts) * choice.randrange(3) if cut else []
        check(tokenizer, [*before, *ids[:cut]], ids[cut:], choice)


@each_kind
@pytest.mark.parametrize("text", [*EMOJI, "naïve – 漢字かな交じり文, a\u0301 done."])
def test_every_beginning_of_encoded_text_streams_token_by_token(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text).ids
    for length in range(len(ids) + 1):
        assert streamed(tokenizer, ids[:length]) == tokenizer.decode(ids[:length])


@pytest.mark.parametrize("character", ["é", "€", "漢", "👨"])
@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_every_part_of_a_character_before_every_kind_of_token(kind: str, character: str) -> None:
    tokenizer = KINDS[kind]()
    followers = ["a", "Added One", "þ", "<|tool|>", "<|end|>"]
    if kind == "llama":
        tokens = [f"<0x{byte:02X}>" for byte in character.encode()]
        followers += ["<0x61>", "<0xA9>", "<0xFF>"]
    else:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(character)
        tokens = list(split[0][0])
        followers += ["©", "ÿ"]
    added = {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    for start, end in itertools.combinations(range(len(tokens) + 1), 2):
        for follower in followers:
            follower_id = added[follower] if follower in added else ids_of(tokenizer, follower)[0]
            part = ids_of(tokenizer, *tokens[start:end])
            for ids in ([*part, follower_id], [*part, follower_id, *part], [follower_id, *part]):
                assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def test_an_impossible_id_is_refused_and_takes_nothing_with_it() -> None:
    tokenizer = KINDS["byte_level"]()
    detokenizer = Detokenizer(tokenizer)
    for impossible in (-1, 2**32):
        with pytest.raises(OverflowError):
            detokenizer.push([*tokenizer.encode("lost").ids, impossible])
    assert detokenizer.push(tokenizer.encode("fox").ids) == "fox"


@each_kind
def test_no_token_is_decoded_twice(kind: str) -> None:
    """Each stage is handed about as much text as there is, however long the stream."""

    class Counting:
        def __init__(self, stage: Stage) -> None:
            self._stage = stage
            self.characters = 0

        def push(self, tokens: list[str]) -> list[str]:
            self.characters += sum(map(len, tokens))
            return self._stage.push(tokens)

        def finish(self) -> list[str]:
            return self._stage.finish()

    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(" ".join(CORPUS * 20)).ids
    detokenizer = Detokenizer(tokenizer)
    counting = [Counting(stage) for stage in detokenizer._stages]
    detokenizer._stages = [*counting]
    for token_id in ids:
        detokenizer.push([token_id])
    longest_form = sum(len(tokenizer.id_to_token(token_id) or "") for token_id in ids)
    for stage in counting:
        assert 0 < stage.characters <= longest_form
