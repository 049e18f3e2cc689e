"""The two shapes of an answer: completions and chat completions, whole or as events of a stream."""

from __future__ import annotations

from typing import Protocol

from runner.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    Choice,
    CompletionChoice,
    Delta,
    Message,
)
from runner.openai.texts import Piece


class Shape(Protocol):
    id_prefix: str
    whole_object: str
    event_object: str

    def opening(self, index: int) -> Choice | None:
        """What a text's stream begins with."""

    def event(self, piece: Piece) -> Choice:
        """A piece as part of an event of a stream."""

    def whole(self, pieces: list[Piece]) -> Choice:
        """All pieces of one text as part of a whole answer."""


class ChatShape:
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def opening(self, index: int) -> Choice | None:
        return ChatChunkChoice(index, Delta(role="assistant", content=""), None, None)

    def event(self, piece: Piece) -> Choice:
        delta = Delta(content=piece.text) if piece.text else Delta()
        return ChatChunkChoice(piece.index, delta, None, piece.finish_reason)

    def whole(self, pieces: list[Piece]) -> Choice:
        message = Message("".join(piece.text for piece in pieces))
        return ChatChoice(pieces[0].index, message, None, pieces[-1].finish_reason)


class CompletionShape:
    id_prefix = "cmpl-"
    whole_object = event_object = "text_completion"

    def opening(self, index: int) -> Choice | None:
        return None

    def event(self, piece: Piece) -> Choice:
        return self.whole([piece])

    def whole(self, pieces: list[Piece]) -> Choice:
        text = "".join(piece.text for piece in pieces)
        return CompletionChoice(pieces[0].index, text, None, pieces[-1].finish_reason)
