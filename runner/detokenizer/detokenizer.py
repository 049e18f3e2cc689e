"""Token ids to text, incrementally: the streamed text equals decoding all tokens at once."""

from collections.abc import Iterable

from tokenizers import Tokenizer

from runner.detokenizer.plan import decoding_plan


class Detokenizer:
    """The text of one stream of tokens, as far as it is certain.

    All that ``push`` returns and what ``finish`` returns, concatenated, equal
    ``tokenizer.decode(all_ids, skip_special_tokens=...)``, for any ids and however they are split over the
    pushes. Returned text is final. A character is returned as soon as no further token can change it
    (see ``plan`` for the decoders that allow it). The time per token does not depend on the earlier tokens.

    Many streams may share a tokenizer: what depends on it alone is computed once. So it must not be changed
    (tokens added, decoder replaced) after a stream has used it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        plan = decoding_plan(tokenizer, skip_special_tokens)
        self._text_of = plan.token_texts.__getitem__
        self._stages = [make() for make in plan.stage_factories]

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these further tokens make certain; ids outside the vocabulary are ignored.

        Raises OverflowError, and takes none of them, if one is negative or above 32 bits.
        """
        texts = [text for text in map(self._text_of, token_ids) if text is not None]
        for stage in self._stages:
            texts = stage.push(texts)
        return "".join(texts)

    def finish(self) -> str:
        """The rest of the text, at the end of the stream or before a token that the caller reads itself.

        Tokens that are pushed afterwards are decoded as later ones of the stream, not as its first.
        """
        rest: list[str] = []
        for stage in self._stages:
            rest = stage.push(rest) + stage.finish()
        return "".join(rest)
