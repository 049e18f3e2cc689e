"""How a tokenizer's decoder is done incrementally: worked out once per tokenizer, shared by its streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Decoder, Replace

from runner.detokenizer import stages
from runner.detokenizer.transforms import Transform, bytes_of_token, ctc, metaspace, strip, word_piece

logger = logging.getLogger(__name__)

Spec = dict[str, Any]
"""One decoder as ``tokenizer.json`` writes it: ``type`` and the options of that type."""
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
    """What the streams of one tokenizer share: the table of token texts, and the stages each has to make."""

    token_texts: TokenTexts
    stage_factories: tuple[StageFactory, ...]


@lru_cache(maxsize=8)
def decoding_plan(tokenizer: Tokenizer, skip_special_tokens: bool) -> DecodingPlan:
    """The plan of ``tokenizer``, which must not be changed any more from its first use here on.

    Keeps the last few tokenizers alive: a process has one, or a handful.
    """
    transforms, factories = _compile(tokenizer.decoder)
    return DecodingPlan(TokenTexts(tokenizer, skip_special_tokens, transforms), tuple(factories))


def _compile(decoder: Decoder | None) -> tuple[list[Transform], list[StageFactory]]:
    """The transforms that go into the table, and the stages after them."""
    if decoder is None:
        return [], [partial(stages.FirstAndLater, str, " {}".format)]
    chain = _Chain()
    if _is_written_in_python(decoder) or not chain.add_all(_flatten(json.loads(decoder.__getstate__()))):
        logger.warning(
            "The tokenizer's decoder can't work incrementally: text comes at the end of streams only."
        )
        return [], [partial(stages.DecodeAtEnd, decoder)]
    return chain.transforms, chain.factories


def _is_written_in_python(decoder: Decoder) -> bool:
    """Such a decoder can't tell its state; the library's own are all of a subclass."""
    return type(decoder) is Decoder


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

    def add_all(self, specs: list[Spec]) -> bool:
        """Append the decoders in order; False as soon as one can't work incrementally at its place."""
        in_the_end: Spec = {"type": "Fuse"}
        return all(self._add(spec, following) for spec, following in pairwise([*specs, in_the_end]))

    def _add(self, spec: Spec, following: Spec) -> bool:
        if spec["type"] == "Fuse":
            self._is_fused = True
        elif self._is_fused:
            return self._add_stage(_text_stage(spec))
        elif spec["type"] == "ByteLevel":
            self._add_transform(bytes_of_token)
            self._add_stage(stages.Utf8)
            self._is_fused = True
        elif (transform := _token_transform(spec)) is not None:
            self._add_transform(transform)
        else:
            return self._add_stage(_token_stage(spec, is_last=following["type"] == "Fuse"))
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
        return partial(strip, content=spec["content"], start=spec["start"], stop=spec["stop"])
    return None


def _token_stage(spec: Spec, is_last: bool) -> StageFactory | None:
    """The decoder as a stage that gets whole tokens; ``is_last``: none after it does."""
    if spec["type"] == "ByteFallback":
        return stages.ByteFallback
    if spec["type"] == "Metaspace":
        return partial(stages.FirstAndLater, *_metaspace(spec))
    if spec["type"] == "WordPiece":
        return partial(stages.FirstAndLater, *word_piece(spec["prefix"], spec["cleanup"]))
    if spec["type"] == "BPEDecoder" and is_last:
        return partial(stages.SuffixToSpace, spec["suffix"])
    if spec["type"] == "CTC":
        transform = ctc(spec["pad_token"], spec["word_delimiter_token"], spec["cleanup"])
        return partial(stages.SkipRepeated, transform)
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


def _metaspace(spec: Spec) -> tuple[Transform, Transform]:
    return metaspace(spec["replacement"], spec["prepend_scheme"])
