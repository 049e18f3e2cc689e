"""How a tokenizer's decoder is done incrementally: worked out once per tokenizer, shared by its streams.

NOTE: the transforms follow what the ``tokenizers`` library does, oddities included, because the
promise is equality with its ``decode``; the tests hold each against the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Decoder, Replace

from runner import detokenizer_stages as stages

Spec = dict[str, Any]
"""One decoder as ``tokenizer.json`` writes it: ``type`` and the options of that type."""
Transform = Callable[[str], str]
StageFactory = Callable[[], stages.Stage]


class TokenTexts(dict[int, "str | None"]):
    """Token id -> the token after the transforms that need no context; None for ids that decoding drops.

    Filled as ids turn up. Raises OverflowError for an id that is not an unsigned 32-bit number, as
    ``Tokenizer.decode`` does.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, transforms: list[Transform]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._transforms = transforms
        added = tokenizer.get_added_tokens_decoder().values() if skip_special_tokens else ()
        self._skipped = {token.content for token in added if token.special}

    def __missing__(self, token_id: int) -> str | None:
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return None  # Not kept: the ids outside the vocabulary have no bound.
        if text in self._skipped:
            self[token_id] = None
            return None
        for transform in self._transforms:
            text = transform(text)
        self[token_id] = text
        return text


@dataclass(frozen=True)
class DecodingPlan:
    """What the streams of one tokenizer share: the table of token texts, and which stages each has to make."""

    token_texts: TokenTexts
    stage_factories: tuple[StageFactory, ...]


@lru_cache(maxsize=8)
def decoding_plan(tokenizer: Tokenizer, skip_special_tokens: bool) -> DecodingPlan:
    """The plan of ``tokenizer``, which must not be changed any more from its first use here on."""
    transforms, factories = _compile(tokenizer.decoder)
    return DecodingPlan(TokenTexts(tokenizer, skip_special_tokens, transforms), tuple(factories))


def _compile(decoder: Decoder | None) -> tuple[list[Transform], list[StageFactory]]:
    """The transforms that go into the table, and the stages after them."""
    if decoder is None:
        return [], [partial(stages.FirstAndLater, str, " {}".format)]
    if type(decoder) is Decoder:  # Written in Python: its rules can't be known.
        return [], [partial(stages.DecodeAtEnd, decoder)]
    chain = _Chain()
    specs = _flatten(json.loads(decoder.__getstate__()))
    for spec, following in zip(specs, [*specs[1:], {"type": "Fuse"}]):
        if not chain.add(spec, is_fused_next=following["type"] == "Fuse"):
            return [], [partial(stages.DecodeAtEnd, decoder)]
    return chain.transforms, chain.factories


def _flatten(spec: Spec) -> list[Spec]:
    if spec["type"] != "Sequence":
        return [spec]
    return [inner for part in spec["decoders"] for inner in _flatten(part)]


class _Chain:
    """The decoders seen so far, as transforms and then stages."""

    def __init__(self) -> None:
        self.transforms: list[Transform] = []
        self.factories: list[StageFactory] = []
        self._is_fused = False

    def add(self, spec: Spec, *, is_fused_next: bool) -> bool:
        """Append a decoder; False if it can't be done incrementally at this place."""
        if spec["type"] == "Fuse":
            self._is_fused = True
        elif self._is_fused:
            return self._add_stage(_text_stage(spec))
        elif spec["type"] == "ByteLevel":
            self._add_transform(_bytes_of_token)
            self._add_stage(stages.Utf8)
            self._is_fused = True
        elif (transform := _token_transform(spec)) is not None:
            self._add_transform(transform)
        else:
            return self._add_stage(_token_stage(spec, is_fused_next))
        return True

    def _add_transform(self, transform: Transform) -> None:
        if self.factories:
            self.factories.append(partial(stages.EachToken, transform))
        else:
            self.transforms.append(transform)

    def _add_stage(self, factory: StageFactory | None) -> bool:
        if factory is not None:
            self.factories.append(factory)
        return factory is not None


def _token_transform(spec: Spec) -> Transform | None:
    """The decoder as a function of one token, if its result depends on nothing else."""
    if spec["type"] == "Replace":
        ((kind, pattern),) = spec["pattern"].items()
        replace = Replace(Regex(pattern) if kind == "Regex" else pattern, spec["content"])
        return lambda token: replace.decode([token])
    if spec["type"] == "Strip":
        return partial(_strip, content=spec["content"], start=spec["start"], stop=spec["stop"])
    return None


def _token_stage(spec: Spec, is_fused_next: bool) -> StageFactory | None:
    """The decoder as a stage that gets whole tokens."""
    if spec["type"] == "ByteFallback":
        return stages.ByteFallback
    if spec["type"] == "Metaspace":
        return partial(stages.FirstAndLater, *_metaspace(spec))
    if spec["type"] == "WordPiece":
        return partial(stages.FirstAndLater, *_word_piece(spec["prefix"], spec["cleanup"]))
    if spec["type"] == "BPEDecoder" and is_fused_next:
        return partial(stages.SuffixToSpace, spec["suffix"])
    if spec["type"] == "CTC":
        return partial(stages.SkipRepeated, _ctc(spec))
    return None


def _text_stage(spec: Spec) -> StageFactory | None:
    """The decoder as a stage that gets one token, the whole text, in pieces."""
    if spec["type"] == "Replace" and spec["pattern"].get("String"):
        return partial(stages.ReplaceInText, spec["pattern"]["String"], spec["content"])
    if spec["type"] == "Strip":
        return partial(stages.StripText, spec["content"], spec["start"], spec["stop"])
    if spec["type"] == "Metaspace":
        first, _ = _metaspace(spec)
        return partial(stages.EachToken, first)
    return None


def _byte_characters() -> dict[int, str]:
    """The byte-level alphabet: a printable character's code point -> its byte, as the character of that number.

    Bytes that print stand for themselves, the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {256 + n: chr(byte) for n, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()


def _bytes_of_token(token: str) -> str:
    """A byte-level token's bytes as characters U+0000 to U+00FF; of any other token, its UTF-8."""
    if all(ord(character) in _BYTE_CHARACTERS for character in token):
        return token.translate(_BYTE_CHARACTERS)
    return token.encode().decode("latin-1")


def _strip(token: str, *, content: str, start: int, stop: int) -> str:
    stage = stages.StripText(content, start, stop)
    return stage.push([token])[0]


def _metaspace(spec: Spec) -> tuple[Transform, Transform]:
    """The first token loses its spaces altogether, unless the scheme says that none was put there."""

    def later(token: str) -> str:
        return token.replace(spec["replacement"], " ")

    def first(token: str) -> str:
        return token.replace(spec["replacement"], "")

    return (later if spec["prepend_scheme"] == "never" else first), later


def _word_piece(prefix: str, has_cleanup: bool) -> tuple[Transform, Transform]:
    def first(token: str) -> str:
        return _cleanup(token) if has_cleanup else token

    def later(token: str) -> str:
        return first(token[len(prefix) :] if token.startswith(prefix) else f" {token}")

    return first, later


def _ctc(spec: Spec) -> Transform:
    def transform(token: str) -> str:
        text = token.replace(spec["pad_token"], "")
        if spec["cleanup"]:
            text = _cleanup(text).replace(spec["word_delimiter_token"], " ")
        return text

    return transform


def _cleanup(token: str) -> str:
    """Undo what splitting off punctuation and English contractions did, in the library's order."""
    for spaced, closed in _CLEANUP:
        token = token.replace(spaced, closed)
    return token


_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
