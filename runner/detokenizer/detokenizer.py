"""Token ids to text while they arrive, losing and inventing nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer

from runner.detokenizer.plan import decoding_plan


class Detokenizer:
    """The text of one stream of tokens, as far as it is certain.

    Everything ``push`` returned, and then what ``finish`` returns, joined, equals
    ``tokenizer.decode(all_ids, skip_special_tokens=...)``, for any ids and however they are split
    over the pushes. What was returned once stands. A character comes as soon as no further token
    can change it; the time per token does not depend on how many came before.

    Many streams may share a tokenizer: what depends on it alone is worked out once. So it must not
    be changed (tokens added, decoder replaced) once a stream has used it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        plan = decoding_plan(tokenizer, skip_special_tokens)
        self._text_of = plan.token_texts.__getitem__
        self._stages = [make() for make in plan.stage_factories]

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these further tokens make certain; ids outside the vocabulary count for nothing.

        Raises OverflowError, and takes none of them, if one is negative or above 32 bits.
        """
        texts = [text for text in map(self._text_of, token_ids) if text is not None]
        for stage in self._stages:
            texts = stage.push(texts)
        return "".join(texts)

    def finish(self) -> str:
        """The rest of the text, when the stream has ended. Called once; nothing is pushed afterwards."""
        rest: list[str] = []
        for stage in self._stages:
            rest = stage.push(rest) + stage.finish()
        return "".join(rest)
