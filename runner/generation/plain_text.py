"""Tokenization of a ``MarkedText``: control tokens in its plain parts are tokenized like other text.

A tokenizer cuts added tokens out of a text, and tokenizes each section between them. Here the same is done
without the control tokens in plain parts: a second tokenizer, of the same model and without added tokens,
gets each section.
"""

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer

from errors.chat import ControlTokensInText
from runner.chat.control_tokens import MarkedText, longest_of

_SEARCHED_CHARACTERS = 1 << 15
"""Limit of one search, which lets no other thread run."""
_PIECE = re.compile(r".{1,4096}(?<=\S)(?= |\Z)|.{1,4096}", re.DOTALL)
_SPACE = re.compile(r"\s*")
_UNSUPPORTED = "the tokenizer is of a kind that is not supported"


@dataclass(frozen=True)
class Section:
    """A part of a text without added tokens, and the added token after it."""

    text: str
    tokenizer: Tokenizer
    after: int | None = None


class PlainText:
    """A tokenizer of plain text. ``control``: texts of tokens that are not read in plain parts."""

    def __init__(self, tokenizer: Tokenizer, control: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._control = control

    def check(self, text: MarkedText) -> None:
        """Raise E1704 if this tokenizer is not supported."""
        if not self._is_supported:
            token = text[slice(*text.plain[0])] if text.plain else ""
            raise ControlTokensInText(token=token, reason=_UNSUPPORTED)

    def encode(self, text: MarkedText) -> list[int]:
        """Tokenize, without special tokens around the text. Raises E1704."""
        self.check(text)
        return self.encode_sections(self.sections(text))

    def sections(self, text: MarkedText) -> Iterator[Section]:
        """Yield all of ``text``, in order."""
        begin = 0
        for start, end, added in self._added_tokens(text):
            section = text[begin:start]
            if added.lstrip:
                section = section.rstrip()
            yield Section(section, self._tokenizers[begin > 0], self._added[added.content][0])
            begin = end
        yield Section(text[begin:], self._tokenizers[begin > 0])

    def encode_sections(self, sections: Iterable[Section]) -> list[int]:
        ids: list[int] = []
        for section in sections:
            (encoding,) = section.tokenizer.encode_batch_fast([section.text], add_special_tokens=False)
            of_section: list[int] = encoding.ids
            ids += of_section if self.is_plain(of_section) else self.encode_words(section)
            ids += [] if section.after is None else [section.after]
        return ids

    def is_plain(self, ids: list[int]) -> bool:
        """Return False if the vocabulary itself has control tokens and they are among ``ids``."""
        return self._control_ids.isdisjoint(ids)

    def pieces(self, section: Section) -> list[Section]:
        """Split a section into pieces that are short enough for ``encode_words``."""
        texts: list[str] = _PIECE.findall(section.text)
        others = self._tokenizers[1]
        return [Section(text, others if at else section.tokenizer) for at, text in enumerate(texts)]

    def encode_words(self, section: Section) -> list[int]:
        """Tokenize without control tokens: a word that gives one is tokenized by characters."""
        tokenizer = section.tokenizer
        ids: list[int] = []
        for piece in self.pieces(section):
            text = piece.text
            normalized = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
            before = piece.tokenizer.pre_tokenizer
            words = [(normalized, None)] if before is None else before.pre_tokenize_str(normalized)
            for word, _ in words:
                of_word = [token.id for token in tokenizer.model.tokenize(word)]
                if not self.is_plain(of_word):
                    of_word = [token.id for each in word for token in tokenizer.model.tokenize(each)]
                ids += of_word
        return ids

    @cached_property
    def _is_supported(self) -> bool:
        """True if these steps are all that this tokenizer does with an example."""
        texts = sorted(self._added)[:8]
        example = "".join(f"Hi {text}there  {text}{text}\nyou, 12 {text} é" for text in texts)
        whole: list[int] = self._tokenizer.encode(example, add_special_tokens=False).ids
        return self.encode_sections(self.sections(MarkedText(example, []))) == whole

    @cached_property
    def _added(self) -> dict[str, tuple[int, AddedToken]]:
        return {
            token.content: (number, token)
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.content
        }

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(longest_of(self._added) if self._added else "(?!)")

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._added[text][0] for text in self._control if text in self._added)

    @cached_property
    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Tokenizers for the first section of a text, and for others, which may get no prefix."""
        first = self._tokenizer.pre_tokenizer
        state = b"" if first is None else first.__getstate__()
        other = first
        if b'"first"' in state:
            other = copy.deepcopy(first)
            other.__setstate__(state.replace(b'"first"', b'"never"'))
        return self._without_added_tokens(first), self._without_added_tokens(other)

    def _without_added_tokens(self, pre_tokenizer: PreTokenizer | None) -> Tokenizer:
        made = Tokenizer(self._tokenizer.model)  # It shares the model, which is large.
        if self._tokenizer.normalizer is not None:
            made.normalizer = self._tokenizer.normalizer
        if pre_tokenizer is not None:
            made.pre_tokenizer = pre_tokenizer
        return made

    def _added_tokens(self, text: MarkedText) -> Iterator[tuple[int, int, AddedToken]]:
        """Yield start, end and token of those in ``text``, but no control tokens in its plain parts."""
        plain = iter(text.plain)
        part = next(plain, None)
        at = 0
        while (match := self._search(text, at)) is not None:
            start, end = match.span()
            added = self._added[match[0]][1]
            while part is not None and part[1] <= start:
                part = next(plain, None)
            is_plain = part is not None and part[0] < end and match[0] in self._control
            at = start + 1 if is_plain else end
            if is_plain or (added.single_word and not _is_word(text, start, end)):
                continue
            if added.rstrip and (space := _SPACE.match(text, end)) is not None:
                at = space.end()
            yield start, at, added

    def _search(self, text: str, at: int) -> re.Match[str] | None:
        """Find the first added token from ``at`` on."""
        longest = max(map(len, self._added), default=0)
        while at < len(text):
            limit = at + _SEARCHED_CHARACTERS
            match = self._pattern.search(text, at, limit + longest)
            if match is not None and match.start() < limit:
                return match
            at = limit
        return None


def _is_word(text: str, start: int, end: int) -> bool:
    return not re.match(r"\w", text[start - 1 : start]) and not re.match(r"\w", text[end : end + 1])
