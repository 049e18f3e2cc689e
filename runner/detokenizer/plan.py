"""Plan for running a tokenizer's decoder incrementally: made once per tokenizer, shared by its streams.

The decoders of language models are incremental: ``ByteLevel`` (GPT-2 and most later models), ``Replace`` and
``ByteFallback`` with an optional ``Strip`` of the text's beginning (SentencePiece), ``Metaspace``,
``WordPiece``, and no decoder at all. With any other decoder, or one of these at an unusual place, the whole
text is decoded at the end.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Decoder, Metaspace, Replace, WordPiece

from runner.detokenizer import stages

logger = logging.getLogger(__name__)

Spec = dict[str, Any]
"""Decoder as ``tokenizer.json`` writes it: ``type`` and the options of that type."""
Transform = Callable[[str], str]
StageFactory = Callable[[], stages.Stage]
Steps = tuple[list[Transform], list[StageFactory]]
"""Transforms of single tokens, done once per token of the vocabulary, and the stages after them."""

_ANY_TOKEN = "a"
_MAX_CACHED_TOKENS = 1 << 17


class TokenTexts(dict[int, "str | None"]):
    """Texts of tokens: id -> token after the transforms of single tokens; None for ids that decoding drops.

    It is filled on first use of an id. Raises OverflowError for an id that is not an unsigned 32-bit number,
    as ``Tokenizer.decode`` does.
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
            return None  # Do not keep it: there is no limit to the ids outside the vocabulary.
        if text in self._skipped:
            self[token_id] = None
            return None
        for transform in self._transforms:
            text = transform(text)
        self[token_id] = text
        return text


@dataclass(frozen=True)
class DecodingPlan:
    """Parts that the streams of one tokenizer share: the token texts, and how to make their stages."""

    token_texts: TokenTexts
    stage_factories: tuple[StageFactory, ...]


@lru_cache(maxsize=8)
def decoding_plan(tokenizer: Tokenizer, skip_special_tokens: bool) -> DecodingPlan:
    """Return the plan of ``tokenizer``, which must not be changed after its first use here.

    The last few tokenizers are kept alive: a process has one, or a handful.
    """
    transforms, factories = _steps(tokenizer.decoder)
    return DecodingPlan(TokenTexts(tokenizer, skip_special_tokens, transforms), tuple(factories))


def _steps(decoder: Decoder | None) -> Steps:
    if decoder is None:
        return [], [partial(stages.FirstAndLater, str, " {}".format)]
    # A decoder written in Python has no state to read; the library's own decoders are subclasses.
    is_python = type(decoder) is Decoder
    steps = None if is_python else _incremental(_flatten(json.loads(decoder.__getstate__())))
    if steps is None:
        logger.warning("this tokenizer's decoder is not incremental: text is sent only at the end of streams")
        return [], [partial(stages.DecodeAtEnd, decoder)]
    return steps


def _flatten(spec: Spec) -> list[Spec]:
    if spec["type"] != "Sequence":
        return [spec]
    return [inner for part in spec["decoders"] for inner in _flatten(part)]


def _incremental(specs: list[Spec]) -> Steps | None:
    """Return the steps of decoders in this order; None if one of them is not incremental at its place."""
    transforms: list[Transform] = []
    factories: list[StageFactory] = []
    is_fused = False
    """True if later decoders of the library see one token: the whole text."""
    for spec in specs:
        match spec["type"]:
            case "Fuse":
                is_fused = True
            case "Replace" if not factories and not is_fused:
                transforms.append(_replace(spec))
            case "ByteLevel" if not factories and not is_fused:
                transforms.append(bytes_of_token)
                factories.append(stages.Utf8)
                is_fused = True
            case "ByteFallback" if not is_fused:
                factories.append(stages.ByteFallback)
            case "Metaspace" | "WordPiece" if not is_fused:
                factories.append(_first_and_later(spec))
            case "Strip" if is_fused and not spec["stop"]:
                factories.append(partial(stages.StripStart, spec["content"], spec["start"]))
            case _:
                return None
    return transforms, factories


def _replace(spec: Spec) -> Transform:
    ((kind, pattern),) = spec["pattern"].items()
    replace = Replace(Regex(pattern) if kind == "Regex" else pattern, spec["content"])
    return lambda token: replace.decode([token])


def _first_and_later(spec: Spec) -> StageFactory:
    """Return a stage for a decoder that treats only the first token in another way."""
    options = {name: value for name, value in spec.items() if name != "type"}
    decoder = {"Metaspace": Metaspace, "WordPiece": WordPiece}[spec["type"]](**options)
    start = len(decoder.decode([_ANY_TOKEN]))
    cached = lru_cache(_MAX_CACHED_TOKENS)
    first = cached(lambda token: decoder.decode([token]))
    later = cached(lambda token: decoder.decode([_ANY_TOKEN, token])[start:])
    return partial(stages.FirstAndLater, first, later)


def bytes_of_token(token: str) -> str:
    """Return a byte-level token's bytes as characters U+0000 to U+00FF; other tokens' UTF-8."""
    if all(ord(character) in _BYTE_CHARACTERS for character in token):
        return token.translate(_BYTE_CHARACTERS)
    return token.encode().decode("latin-1")


def _byte_characters() -> dict[int, str]:
    """Return the byte-level alphabet: a character's code point -> its byte, as that character.

    Printable bytes stand for themselves, the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {256 + n: chr(byte) for n, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()
