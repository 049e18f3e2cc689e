"""Stop sequences with special tokens, which decoding leaves out of the text.

A token that is a stop sequence by itself ends the text wherever the model generates it. One that is a part of
a stop sequence is searched for as a character that no text has, a surrogate, which is not shown.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from tokenizers import Tokenizer

from runner.generation.stop_sequences import StopSequences

_FIRST = 0xDD00
"""First character, after those of ``runner.chat.families.markers``."""


class SpecialStops:
    """Stop sequences of one request."""

    def __init__(
        self, stops: StopSequences, tokenizer: Tokenizer, *, skips_special_tokens: bool = True
    ) -> None:
        self.by_token: dict[int, str] = {}
        """Stop sequences that are one special token."""
        self.characters: dict[int, str] = {}
        """Characters by the id of a token that is a part of a stop sequence."""
        self.stops = stops
        """All stop sequences; those with ``characters`` in both spellings."""
        if not stops:
            return
        ids, find = _special_tokens(tokenizer)
        self.by_token = {ids[stop]: stop for stop in stops if stop in ids}
        written = {stop: self._written(stop, ids, find) for stop in stops if stop not in ids}
        spelled = [each for stop, each in written.items() if each != stop]
        if skips_special_tokens and spelled:
            self.stops = stops.extended(spelled)
        else:
            self.characters.clear()
        self._texts = {ord(self.characters[id_]): text for text, id_ in ids.items() if id_ in self.characters}
        self._hidden = dict.fromkeys(self._texts)

    def _written(self, stop: str, ids: dict[str, int], find: re.Pattern[str]) -> str:
        def character(found: re.Match[str]) -> str:
            return self.characters.setdefault(ids[found[0]], chr(_FIRST + len(self.characters)))

        return find.sub(character, stop)

    def shown(self, text: str) -> str:
        """Return ``text`` without characters for tokens."""
        return text.translate(self._hidden) if self.characters else text

    def named(self, stop: str | None) -> str | None:
        """Return one of ``stops`` as the client wrote it."""
        return stop.translate(self._texts) if stop and self.characters else stop

    def runs(self, tokens: list[int]) -> Iterator[tuple[list[int], str]]:
        """Yield tokens, and the character of the token after them; an empty one at the end."""
        run: list[int] = []
        for token in tokens:
            if (character := self.characters.get(token)) is None:
                run.append(token)
            else:
                yield run, character
                run = []
        yield run, ""


@lru_cache(maxsize=8)
def _special_tokens(tokenizer: Tokenizer) -> tuple[dict[str, int], re.Pattern[str]]:
    """Return the ids of special tokens by their texts, and a pattern of the texts."""
    added = tokenizer.get_added_tokens_decoder().items()
    ids = {token.content: id_ for id_, token in added if token.special and token.content}
    longest_first = sorted(ids, key=len, reverse=True)
    return ids, re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
