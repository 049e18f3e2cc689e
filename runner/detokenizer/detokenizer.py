"""Token ids to text, incrementally: the streamed text equals decoding all tokens at once."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from runner.detokenizer.plan import decoding_plan
from runner.detokenizer.stages import BYTE_TOKENS

_SETTLING_CHARACTERS = 8
"""Number of characters after which an incremental UTF-8 decoder no longer depends on what came before."""
_MOST_TOKENS = 64
"""Number of tokens at either end of a prompt that are considered."""


class Detokenizer:
    """Text of one stream of tokens, as far as it is certain.

    All that ``push`` returns and what ``finish`` returns, concatenated, equal ``tokenizer.decode(all_ids,
    skip_special_tokens=...)``, for any ids and however they are split over the pushes. Returned text is
    final. A character is returned as soon as no further token can change it (see ``plan`` for the decoders
    that allow it). The time per token does not depend on the earlier tokens.

    After ``follow`` the text continues a prompt: it is the text of both, less the prompt's.

    Many streams may share a tokenizer: what depends on it alone is computed once. So it must not be changed
    (tokens added, decoder replaced) after a stream has used it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        plan = decoding_plan(tokenizer, skip_special_tokens)
        self._text_of = plan.token_texts.__getitem__
        self._stages = [make() for make in plan.stage_factories]
        self._incomplete = ""
        """Text that the prompt has for its last character, which the output may complete."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Take tokens and return the text that they make certain. Ids outside the vocabulary are ignored.

        Raises OverflowError, and takes no token, if one is negative or above 32 bits.
        """
        texts = [text for text in map(self._text_of, token_ids) if text is not None]
        for stage in self._stages:
            texts = stage.push(texts)
        text = "".join(texts)
        return self._beyond_prompt(text) if self._incomplete else text

    def finish(self) -> str:
        """End the stream, or pause before a token that the caller reads, and return the rest of the text.

        Tokens that are pushed afterwards are decoded as later ones of the stream, not as its first.
        """
        rest: list[str] = []
        for stage in self._stages:
            rest = stage.push(rest) + stage.finish()
        text = "".join(rest)
        return self._beyond_prompt(text) if self._incomplete else text

    def follow(self, prompt: Iterable[int], *, shows_incomplete: bool = False) -> str:
        """Continue the text of ``prompt``, before any token. Return that text up to its last whole character.

        A character that the prompt only begins is part of the output if the output completes it. If it does
        not, the U+FFFD of the prompt's bytes is left out, unless ``shows_incomplete``.
        """
        text = self.push(prompt)
        rest: list[str] = []
        for stage in self._stages:
            rest = stage.push(rest) + stage.settle()
        if not shows_incomplete:
            self._incomplete = "".join(stage.incomplete for stage in self._stages)
        return text + "".join(rest)

    @property
    def drops_space(self) -> bool:
        """True if the next token would lose a space at its beginning, as the first of a text."""
        return any(stage.drops_space for stage in self._stages)

    @property
    def num_held(self) -> int:
        """Number of complete characters that later tokens could still change."""
        return sum(stage.num_held for stage in self._stages)

    def _beyond_prompt(self, text: str) -> str:
        if text:
            text, self._incomplete = text.removeprefix(self._incomplete), ""
        return text


def context_of(tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> list[int]:
    """Return the tokens of ``prompt`` on which the text after it depends: a few at either end.

    ``follow`` has the same effect with them as with the whole prompt. The exceptions are bytes far from its
    end that are not UTF-8, and decoders that are not incremental: for these the last tokens count.
    """
    texts = decoding_plan(tokenizer, skip_special_tokens).token_texts
    beginning = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    shown = (at for at, token in enumerate(prompt[:_MOST_TOKENS]) if beginning.push([token]))
    length = next(shown, -1) + 1
    head = [token for token in prompt[:length] if texts[token] is not None]
    tail: list[int] = []
    num_characters = 0
    for token in reversed(prompt[max(length, len(prompt) - _MOST_TOKENS) :]):
        if (text := texts[token]) is None:
            continue
        tail.insert(0, token)
        num_characters += len(text)
        if head and num_characters >= _SETTLING_CHARACTERS and text not in BYTE_TOKENS:
            return head + tail
    if len(prompt) - length <= _MOST_TOKENS:
        return head + tail
    begin = next((at for at, token in enumerate(tail) if not _continues_character(texts[token])), len(tail))
    return tail[begin:] or head


def _continues_character(text: str | None) -> bool:
    byte = BYTE_TOKENS.get(text or "")
    return byte is not None and b"\x80" <= byte < b"\xc0"
