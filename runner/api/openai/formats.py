"""The two shapes of an answer: completions and chat completions, whole or as events of a stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from runner.api.generations import Piece
from runner.api.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogProb,
    ChatLogProbs,
    Choice,
    CompletionChoice,
    CompletionLogProbs,
    Delta,
    Message,
    TopLogProb,
)
from runner.api.token_texts import TokenTexts
from runner.engines.protocol.messages import TokenLogProb


class Shape(Protocol):
    """One per request: it may remember what it has given out."""

    id_prefix: str
    whole_object: str
    event_object: str

    def opening(self, index: int) -> Choice | None:
        """What a text's stream begins with."""

    def event(self, piece: Piece) -> Choice:
        """A piece as part of an event of a stream."""

    def whole(self, pieces: Sequence[Piece]) -> Choice:
        """All pieces of one text as part of a whole answer."""


class ChatShape:
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens

    def opening(self, index: int) -> Choice | None:
        return ChatChunkChoice(index, Delta(role="assistant", content=""), None, None)

    def event(self, piece: Piece) -> Choice:
        delta = Delta(content=piece.text) if piece.text else Delta()
        return ChatChunkChoice(piece.index, delta, self._log_probs([piece]), piece.finish_reason)

    def whole(self, pieces: Sequence[Piece]) -> Choice:
        message = Message("".join(piece.text for piece in pieces))
        return ChatChoice(pieces[0].index, message, self._log_probs(pieces), pieces[-1].finish_reason)

    def _log_probs(self, pieces: Sequence[Piece]) -> ChatLogProbs | None:
        content = [self._log_prob(*each) for piece in pieces for each in piece.log_probs]
        return ChatLogProbs(content) if content else None

    def _log_prob(self, token_id: int, log_prob: TokenLogProb) -> ChatLogProb:
        text, encoded = self._tokens.find(token_id)
        top = [self._top(*each) for each in log_prob.top]
        return ChatLogProb(text, log_prob.value, encoded, top)

    def _top(self, token_id: int, value: float) -> TopLogProb:
        text, encoded = self._tokens.find(token_id)
        return TopLogProb(text, value, encoded)


class CompletionShape:
    id_prefix = "cmpl-"
    whole_object = event_object = "text_completion"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._offsets: dict[int, int] = defaultdict(int)
        """By index: where in the text the next token begins, by the texts of the tokens before it."""

    def opening(self, index: int) -> Choice | None:
        return None

    def event(self, piece: Piece) -> Choice:
        return self.whole([piece])

    def whole(self, pieces: Sequence[Piece]) -> Choice:
        text = "".join(piece.text for piece in pieces)
        index = pieces[0].index
        return CompletionChoice(index, text, self._log_probs(index, pieces), pieces[-1].finish_reason)

    def _log_probs(self, index: int, pieces: Sequence[Piece]) -> CompletionLogProbs | None:
        tokens = [each for piece in pieces for each in piece.log_probs]
        if not tokens:
            return None
        texts = [self._tokens.find(token_id)[0] for token_id, _ in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return CompletionLogProbs(
            text_offset=offsets,
            token_logprobs=[log_prob.value for _, log_prob in tokens],
            tokens=texts,
            top_logprobs=[self._top(*each) for each in tokens] if tokens[0][1].top else None,
        )

    def _top(self, token_id: int, log_prob: TokenLogProb) -> dict[str, float]:
        """By text; as in OpenAI's, the chosen token is always there."""
        values = {self._tokens.find(each)[0]: value for each, value in reversed(log_prob.top)}
        values.setdefault(self._tokens.find(token_id)[0], log_prob.value)
        return values
