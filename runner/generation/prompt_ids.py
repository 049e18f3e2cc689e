"""The token ids of one prompt, made once for all texts that are generated for it."""

from __future__ import annotations

import asyncio

from runner.generation.tokenizing import Tokenizing


class PromptIds:
    """Use it for one prompt only."""

    def __init__(self) -> None:
        self._ids: list[int] | None = None
        self._task: asyncio.Task[list[int]] | None = None
        self._num_waiting = 0

    async def of(self, prompt: str, tokenizing: Tokenizing, *, adds_special_tokens: bool) -> list[int]:
        """Raises E1002 and E1704. Tokenizing ends once every caller was cancelled."""
        if self._ids is not None:
            return self._ids
        if tokenizing.is_short(prompt):
            self._ids = tokenizing.encode_short(prompt, adds_special_tokens=adds_special_tokens)
            return self._ids
        if self._task is None:
            work = tokenizing.encode(prompt, adds_special_tokens=adds_special_tokens)
            self._task = asyncio.ensure_future(work)
        self._num_waiting += 1
        try:
            self._ids = await asyncio.shield(self._task)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._task.cancel()
        return self._ids
