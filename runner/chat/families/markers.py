"""The texts that mark calls and reasoning, as one tokenizer writes them: as tokens, or as ordinary text.

A marker that is a token of the tokenizer is read as one character that no text has, a surrogate. So ordinary
tokens that spell the marker stay text. Other markers are found in the text.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from tokenizers import Tokenizer

Search = Callable[..., "re.Match[str] | None"]

_SPECIAL, _ADDED = 0xDC00, 0xDC80
CUT = "\N{REPLACEMENT CHARACTER}"
"""What the end of an answer makes of a character that it cuts, which may be one of a marker."""


class Stops:
    """Finds the first of some texts, of which none contains another, in a text that is still growing."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = sorted({*texts} - {""})
        assert not any(one in other for one in found for other in found if one != other), found
        longer = [text for text in found if len(text) > 1]
        whole = [_any(text for text in found if len(text) == 1), *map(re.escape, longer)]
        begun = rf"|(?:{'|'.join(map(_beginning, longer))}){CUT}?\Z" if longer else ""
        self.search: Search = re.compile(f"({'|'.join(whole)}){begun}").search
        """Group 1 is the text that was found; without it, one of them may begin at the match."""
        self.search_first = re.compile(_any(text[0] for text in found)).search
        """Finds a character with which one of them begins; in less time."""


def _any(characters: Iterable[str]) -> str:
    """A regular expression for one of them."""
    return f"[{escaped}]" if (escaped := "".join(map(re.escape, characters))) else "(?!)"


def _beginning(text: str) -> str:
    """A regular expression for any beginning of ``text``, but not the whole."""
    made = ""
    for character in reversed(text[:-1]):
        made = re.escape(character) + (f"(?:{made})?" if made else "")
    return made


class Markers:
    """Those of one family in one tokenizer. Use ``markers_of``."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        added = {token.content: (id_, token) for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self.characters: dict[int, str] = {}
        """By token id."""
        self.ids: dict[str, int] = {}
        """Of the markers that are tokens, by their text."""
        self._written: dict[str, str] = {}
        self._plain: dict[int, str] = {}
        for number, text in enumerate(sorted({*texts} - {""})):
            if text not in added:
                continue
            id_, token = added[text]
            character = chr((_SPECIAL if token.special else _ADDED) + number)
            self.ids[text] = id_
            self.characters[id_] = self._written[text] = character
            self._plain[ord(character)] = "" if token.special else text
        self._stops: dict[tuple[str, ...], Stops] = {}

    def written(self, marker: str) -> str:
        """A marker as it is read: a character or the text."""
        return self._written.get(marker, marker)

    def plain(self, text: str) -> str:
        """``text`` without characters for tokens: as it would be without a family."""
        return text.translate(self._plain)

    def stops(self, *texts: str) -> Stops:
        """Finds these markers or other texts, and every marker that is a token."""
        if texts not in self._stops:
            self._stops[texts] = Stops([*map(self.written, texts), *self._written.values()])
        return self._stops[texts]


def is_token(character: str) -> bool:
    """Whether it stands for a token."""
    return "\udc00" <= character < "\udd00"


def is_special(character: str) -> bool:
    """Whether it stands for a special token, which no text has: such a marker counts everywhere."""
    return "\udc00" <= character < "\udc80"


@lru_cache(maxsize=32)
def markers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Markers:
    return Markers(tokenizer, texts)
