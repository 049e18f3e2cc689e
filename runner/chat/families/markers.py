"""The texts that mark calls and reasoning, as one tokenizer writes them: as tokens, or as ordinary text.

A marker that is a token of the tokenizer is read as one character that no text has, a surrogate. So ordinary
tokens that spell the marker stay text. The same holds for special tokens that are a part of a marker. Other
markers are found in the text.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from tokenizers import Tokenizer

Search = Callable[..., "re.Match[str] | None"]

_SPECIAL, _ADDED = 0xDC00, 0xDC80
CUT = "\N{REPLACEMENT CHARACTER}"
"""Character that stands for an incomplete one, maybe of a marker, where an answer was cut."""


class Stops:
    """Search for the first of some texts in a text that is still growing. Only tokens begin others."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = sorted({*texts} - {""})
        longer = [text for text in found if len(text) > 1]
        assert not any(b.startswith(a) for a in found for b in longer if a != b and not is_token(a)), found
        begun = rf"(?:{'|'.join(map(_beginning, longer))}){CUT}?\Z" if longer else "(?!)"
        one = f"(?!{begun}){_any(text for text in found if len(text) == 1)}"
        self.search: Search = re.compile(f"({'|'.join((*map(re.escape, longer), one))})|{begun}").search
        """Search for a text, which is group 1; without it, a text may begin at the match."""
        self.search_first = re.compile(_any(text[0] for text in found)).search
        """Search for the first character of a text; it takes less time."""


def _any(characters: Iterable[str]) -> str:
    """Return a regular expression for one of ``characters``."""
    return f"[{escaped}]" if (escaped := "".join(map(re.escape, characters))) else "(?!)"


def _beginning(text: str) -> str:
    """Return a regular expression for any beginning of ``text``, but not the whole."""
    made = ""
    for character in reversed(text[:-1]):
        made = re.escape(character) + (f"(?:{made})?" if made else "")
    return made


class Markers:
    """Markers of one family in one tokenizer. Use ``markers_of``."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        added = {token.content: (id_, token) for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self.characters: dict[int, str] = {}
        """Characters by token id."""
        self.ids: dict[str, int] = {}
        """Ids of the tokens that are markers or parts of them, by their text."""
        self._written: dict[str, str] = {}
        """Tokens, and the markers that begin with one, as they are read."""
        self._plain: dict[int, str] = {}
        self._special = [text for text, (_, token) in added.items() if token.special]
        markers = sorted({*texts} - {""})
        parts = {part for part in self._special if any(part in marker for marker in markers)}
        for number, text in enumerate(sorted(parts.union(markers))):
            if text not in added:
                continue
            id_, token = added[text]
            character = chr((_SPECIAL if token.special else _ADDED) + number)
            self.ids[text] = id_
            self.characters[id_] = self._written[text] = character
            self._plain[ord(character)] = "" if token.special else text
        self._token = re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or "(?!)")
        for marker in markers:
            if marker not in self.ids and self._token.search(marker):
                self._written[marker] = self._token.sub(lambda match: self._written[match[0]], marker)
        self._stops: dict[tuple[str, ...], Stops] = {}

    def written(self, marker: str) -> str:
        """Return a marker as it is read: the text, with characters for tokens."""
        return self._written.get(marker, marker)

    def begins_with_token(self, marker: str) -> bool:
        """Return True if a marker begins with a token, so that it ends any text."""
        return self._token.match(marker) is not None

    def encoded(self, text: str) -> str:
        """Put characters for tokens into ``text``, and leave other special tokens out."""
        text = self._token.sub(lambda match: self._written[match[0]], text)
        for special in self._special:
            text = text.replace(special, "")
        return text

    def split(self, text: str) -> list[str]:
        """Split ``text`` into tokens, and what is between them."""
        return [each for each in re.split(f"({self._token.pattern})", text) if each]

    def plain(self, text: str) -> str:
        """Remove characters for tokens from ``text``: return it as it would be without a family."""
        return text.translate(self._plain)

    def stops(self, *texts: str) -> Stops:
        """Find these markers or other texts, and every marker that is a token."""
        if texts not in self._stops:
            self._stops[texts] = Stops([*map(self.written, texts), *self._written.values()])
        return self._stops[texts]


def is_token(character: str) -> bool:
    """Return True if a text stands for a token, or begins with one."""
    return "\udc00" <= character < "\udd00"


def is_special(character: str) -> bool:
    """Return True if a text stands for a special token, which no text has: it counts everywhere."""
    return "\udc00" <= character < "\udc80"


@lru_cache(maxsize=32)
def markers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Markers:
    return Markers(tokenizer, texts)
