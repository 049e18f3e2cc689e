"""Stop words and bad words, which are sequences of tokens, in an output."""

from collections import defaultdict


class Words:
    """Token sequences, indexed by their last tokens, so that a step looks only at those that could match."""

    def __init__(self, words: list[list[int]]) -> None:
        self._single = sorted({word[0] for word in words if len(word) == 1})
        self._by_last: dict[int, list[list[int]]] = defaultdict(list)
        self._by_last_but_one: dict[int, list[list[int]]] = defaultdict(list)
        for word in words:
            self._by_last[word[-1]].append(word)
            if len(word) > 1:
                self._by_last_but_one[word[-2]].append(word)

    def end(self, tokens: list[int], start: int = 0) -> bool:
        """Return True if ``tokens[start:]`` ends with one of the words."""
        candidates = self._by_last.get(tokens[-1], ()) if tokens else ()
        return any(_ends_with(tokens, word, start) for word in candidates)

    def completions(self, tokens: list[int], start: int = 0) -> list[int]:
        """Return the tokens that would complete a word after ``tokens[start:]``."""
        candidates = self._by_last_but_one.get(tokens[-1], ()) if tokens else ()
        return self._single + [word[-1] for word in candidates if _ends_with(tokens, word[:-1], start)]


def _ends_with(tokens: list[int], word: list[int], start: int) -> bool:
    return len(word) <= len(tokens) - start and tokens[-len(word) :] == word
