"""Tokenizes a ``MarkedText``: control tokens in its plain parts are tokenized like other text.

A tokenizer cuts added tokens out of a text, and each section between them is normalized, split and tokenized
by the model. Here the same is done step by step, without the control tokens in plain parts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer

from errors.chat import ControlTokensInText
from runner.chat.marked_text import MarkedText

_MOST_CHARACTERS = 1 << 20
"""Takes about half a second and 50 MB of memory."""
_UNSUPPORTED = "the tokenizer is of a kind that is not supported"


class PlainText:
    """``control``: the texts of tokens that are not read in plain parts."""

    def __init__(self, tokenizer: Tokenizer, control: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._control = control

    def encode(self, text: MarkedText) -> list[int]:
        """Token ids, without special tokens around them. Raises E1704."""
        token = text[slice(*text.plain[0])] if text.plain else ""
        if not self._is_supported:
            raise ControlTokensInText(token=token, reason=_UNSUPPORTED)
        if len(text) > _MOST_CHARACTERS:
            reason = f"messages with such a text may make at most {_MOST_CHARACTERS} characters"
            raise ControlTokensInText(token=token, reason=reason)
        return self._encode(text)

    @cached_property
    def _is_supported(self) -> bool:
        """Whether these steps are all that this tokenizer does with an example."""
        texts = sorted(self._added)[:8]
        example = "".join(f"Hi {text}there  {text}{text}\nyou, 12 {text} é" for text in texts)
        whole: list[int] = self._tokenizer.encode(example, add_special_tokens=False).ids
        return self._encode(MarkedText(example, [])) == whole

    @cached_property
    def _added(self) -> dict[str, tuple[int, AddedToken]]:
        return {
            token.content: (number, token)
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.content
        }

    @cached_property
    def _longest_first(self) -> list[str]:
        return sorted(self._added, key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """A group for each added token, between the spaces that it takes away."""
        patterns = (_pattern_of(self._added[text][1]) for text in self._longest_first)
        return re.compile("|".join(patterns) or "(?!)")

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._added[text][0] for text in self._control if text in self._added)

    @cached_property
    def _pre_tokenizers(self) -> tuple[Any, Any]:
        """For the first section of a text, and for others, which get no prefix if only the first does."""
        first = self._tokenizer.pre_tokenizer
        state = b"" if first is None else first.__getstate__()
        if b'"first"' not in state:
            return first, first
        other = copy.deepcopy(first)
        other.__setstate__(state.replace(b'"first"', b'"never"'))
        return first, other

    def _encode(self, text: MarkedText) -> list[int]:
        ids: list[int] = []
        begin = 0
        for match in self._added_tokens(text):
            ids += self._section(text[begin : match.start()], is_first=begin == 0)
            ids.append(self._added[match[match.lastindex or 0]][0])
            begin = match.end()
        return ids + self._section(text[begin:], is_first=begin == 0)

    def _added_tokens(self, text: MarkedText) -> Iterator[re.Match[str]]:
        """Those in ``text``, except for control tokens in its plain parts."""
        plain = iter(text.plain)
        part = next(plain, None)
        at = 0
        while (match := self._pattern.search(text, at)) is not None:
            start, end = match.span(match.lastindex or 0)
            while part is not None and part[1] <= start:
                part = next(plain, None)
            if part is not None and part[0] < end and text[start:end] in self._control:
                at = start + 1
                continue
            yield match
            at = match.end()

    def _section(self, text: str, *, is_first: bool) -> list[int]:
        if not text:
            return []
        tokenizer = self._tokenizer
        normalized = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        pre_tokenizer = self._pre_tokenizers[0 if is_first else 1]
        words = [(normalized, None)] if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(normalized)
        ids: list[int] = []
        for word, _ in words:
            of_word = [token.id for token in tokenizer.model.tokenize(word)]
            if not self._control_ids.isdisjoint(of_word):  # The vocabulary itself has the control token.
                of_word = [token.id for character in word for token in tokenizer.model.tokenize(character)]
            ids += of_word
        return ids


def _pattern_of(token: AddedToken) -> str:
    word = r"\b" if token.single_word else ""
    before, after = (r"\s*" if strips else "" for strips in (token.lstrip, token.rstrip))
    return f"{before}{word}({re.escape(token.content)}){word}{after}"
