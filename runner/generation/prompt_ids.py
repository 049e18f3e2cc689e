"""The token ids of one prompt, made once for all texts that are generated for it, and how many a call has."""

import asyncio
from collections.abc import Sequence

from errors.requests import InvalidInput
from runner.generation.tokenizing import Tokenizing

_MOST_PROMPT_TOKENS = 1 << 20


class PromptIds:
    """The ids of ``prompt``, with or without special tokens that the tokenizer adds; None: of no prompt."""

    def __init__(
        self, prompt: str | Sequence[int] | None = None, *, adds_special_tokens: bool = True
    ) -> None:
        self._prompt = prompt
        self._adds_special_tokens = adds_special_tokens
        self._ids: list[int] | None = None
        self._task: asyncio.Task[list[int]] | None = None
        self._num_waiting = 0

    def is_of(self, prompt: str | Sequence[int], *, adds_special_tokens: bool) -> bool:
        return self._prompt is prompt and self._adds_special_tokens == adds_special_tokens

    async def get(self, tokenizing: Tokenizing) -> list[int]:
        """Tokenize once for all callers, unless each is cancelled. Raises E1002 and E1704."""
        prompt, adds = self._prompt, self._adds_special_tokens
        if self._ids is None and not isinstance(prompt, str):
            self._ids = list(prompt or ())
        if self._ids is not None:
            return self._ids
        assert isinstance(prompt, str)
        if self._task is None:
            self._ids = tokenizing.encode_now(prompt, adds_special_tokens=adds)
            if self._ids is not None:
                return self._ids
            self._task = asyncio.ensure_future(tokenizing.encode_later(prompt, adds_special_tokens=adds))
        self._num_waiting += 1
        try:
            self._ids = await asyncio.shield(self._task)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._task.cancel()
        return self._ids


class PromptTokens:
    """Number of prompt tokens of all texts of one call: the engine gets and holds them for each text."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, count: int) -> None:
        """Add a text's tokens. Raises E1005 if there are too many; never for the first text."""
        if self._count and self._count + count > _MOST_PROMPT_TOKENS:
            expected = f"of at most {_MOST_PROMPT_TOKENS} tokens in all, counted again for each text of n"
            raise InvalidInput(name="prompt", expected=expected, value=self._count + count)
        self._count += count
