"""A prompt of an exact number of tokens, of one repeated word, whatever the server's tokenizer."""

from collections.abc import Awaitable, Callable

_WORD = " a"
_ODD_ENDS = (".", "!", "?!", " b", " b.", "\n", " ~")
"""Words that may make up for a token that one more word would overshoot."""
_MOST_PROBES = 24

Count = Callable[[str], Awaitable[int]]
"""Function that counts a prompt's tokens by the server."""


def guessed_prompt(tokens: int) -> str:
    """Repeat a word that is one token, with its space, in nearly every tokenizer."""
    return (_WORD * tokens).strip()


async def exact_prompt(tokens: int, count: Count) -> tuple[str, int]:
    """Return the prompt nearest to ``tokens``, and how many it has. Calls ``count`` a few times."""
    found: dict[int, int] = {}
    words = tokens
    while words not in found and len(found) < _MOST_PROBES:
        found[words] = await count(guessed_prompt(words))
        words = max(1, words + (tokens - found[words]) * words // max(found[words], 1))
    words = max((each for each in found if found[each] <= tokens), default=min(found))
    prompts = {guessed_prompt(words): found[words]}
    for end in _ODD_ENDS:
        if tokens in prompts.values():
            break
        text = guessed_prompt(words) + end
        prompts[text] = await count(text)
    return min(prompts.items(), key=lambda prompt: abs(prompt[1] - tokens))
