"""A prompt of an exact number of tokens, of one repeated word, whatever the server's tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

_WORD = " a"
_ODD_ENDS = ("", ".", "!", "?!", " b", " b.", "\n", " ~")
"""What may make up for a token that one more word would overshoot."""
_MOST_PROBES = 24

Count = Callable[[str], Awaitable[int]]
"""How many tokens the server counts in a prompt."""


def guessed_prompt(tokens: int) -> str:
    """Nearly every tokenizer makes one token of the word with its space."""
    return (_WORD * tokens).strip()


async def exact_prompt(tokens: int, count: Count) -> tuple[str, int]:
    """The prompt that comes nearest to ``tokens``, and how many it has. Calls ``count`` a few times."""
    words = await _words_below(tokens, count)
    best = ("", 0)
    for end in _ODD_ENDS:
        text = guessed_prompt(words) + end
        found = await count(text)
        if abs(found - tokens) < abs(best[1] - tokens) or not best[0]:
            best = (text, found)
        if found == tokens:
            break
    return best


async def _words_below(tokens: int, count: Count) -> int:
    """The most words that are not more tokens than wanted (at least one)."""
    low, high = 1, tokens + 1
    guess = tokens
    for _ in range(_MOST_PROBES):
        found = await count(guessed_prompt(guess))
        if found <= tokens:
            low = max(low, guess)
        else:
            high = min(high, guess)
        if found == tokens or high - low <= 1:
            break
        step = guess + round((tokens - found) * guess / found)
        guess = min(max(step, low + 1), high - 1)
    return low
