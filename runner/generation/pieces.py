"""Long texts in pieces whose tokens do not depend on what is before or after them, and are kept.

So prompts with the same beginning have it tokenized once. A text is cut before single spaces between letters
or digits, if the tokenizer is of a kind that never has a token over such a place:

* It is a byte-level BPE, which tokenizes each word by itself. Its normalizer, if any, is NFC.
* Its words are the matches of a regular expression of ``_ALTERNATIVES``, from left to right. In each of these
  a space is the first character, or all characters are whitespace: so a word begins at such a place, and the
  words on either side are found without a look at the other.
* No added token has a space, or a letter or digit at an end, so none touches such a place.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_PIECE_CHARACTERS = 512
_SEARCHED_CHARACTERS = 1 << 15
_MOST_CHARACTERS = 1 << 22
"""Limit of all pieces that are kept. A character may take 4 bytes, and a token takes 4."""
_CUT = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'d)", "'d)?")
_O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s",
)
_WHITESPACE = r"\s+"
_ALTERNATIVES = {
    *_CONTRACTIONS,
    *_O200K_WORDS,
    *("(?i:'s", r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    *(r" ?\p{N}+", r"\p{N}", r"\p{N}{1,3}"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", _WHITESPACE),
}
"""Alternatives in the regular expressions of GPT-2, GPT-4 (Llama 3), GPT-4o, Qwen 2 to 3.5 and later ones."""


class Pieces:
    """Pieces of one tokenizer. Those that were used last are kept with their tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, array[int]] = {}
        self._num_characters = 0

    def of(self, text: str) -> Iterator[str]:
        """Yield all of ``text``, in order. Pieces are short unless a place to cut is far or missing."""
        begin = 0
        while len(text) - begin > _PIECE_CHARACTERS and self.is_supported:
            first = begin + _PIECE_CHARACTERS
            cut = _CUT.search(text, first, first + _SEARCHED_CHARACTERS)
            if cut is None:
                break
            yield text[begin : cut.start()]
            begin = cut.start()
        yield text[begin:]

    def find(self, piece: str) -> array[int] | None:
        """Return the piece's tokens, if they are known."""
        ids = self._known.pop(piece, None)
        if ids is not None:
            self._known[piece] = ids  # As the last one.
        return ids

    def keep(self, piece: str, ids: list[int]) -> None:
        if piece in self._known:
            return
        self._known[piece] = array("I", ids)
        self._num_characters += len(piece)
        while self._num_characters > _MOST_CHARACTERS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._num_characters -= len(oldest)

    @cached_property
    def is_supported(self) -> bool:
        tokenizer = self._tokenizer
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        return (
            isinstance(tokenizer.model, BPE)
            and not tokenizer.model.dropout
            and (tokenizer.normalizer is None or _state(tokenizer.normalizer) == {"type": "NFC"})
            and tokenizer.pre_tokenizer is not None
            and _has_words(_state(tokenizer.pre_tokenizer))
            and not any(" " in each or each[:1].isalnum() or each[-1:].isalnum() for each in added)
        )


def _state(part: Normalizer | PreTokenizer) -> dict[str, Any]:
    """Return the object as ``tokenizer.json`` writes it."""
    if type(part) in (Normalizer, PreTokenizer):
        return {"type": "written in Python"}
    found: dict[str, Any] = json.loads(part.__getstate__())
    return found


def _has_words(pre_tokenizer: dict[str, Any]) -> bool:
    """Tell whether the pre-tokenizer makes words as described above, and nothing else."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return all(map(_is_known, steps)) and any(map(_covers_spaces, steps))


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return set(_alternatives(step)) <= _ALTERNATIVES
    return step["type"] in ("ByteLevel", "Digits")


def _covers_spaces(step: dict[str, Any]) -> bool:
    """Tell whether matches cover each space."""
    if step["type"] == "Split":
        return _WHITESPACE in _alternatives(step)
    return step["type"] == "ByteLevel" and bool(step["use_regex"])


def _alternatives(split: dict[str, Any]) -> list[str]:
    is_isolated = split["behavior"] == "Isolated" or (split["behavior"] == "Removed" and split["invert"])
    regex: str = split["pattern"].get("Regex", "")
    return regex.split("|") if is_isolated else [""]
