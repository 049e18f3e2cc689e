"""The interface of an API's form of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from errors.coded_error import CodedError
from runner.api.error_response import Fields
from runner.api.generations import Generations, Piece


class AnswerWriter(Protocol):
    """Writes the answer of one call: the bytes of a document, or of a stream of server-sent events."""

    response_id: str
    model: str
    fields: Fields

    def document(self, texts: Sequence[Sequence[Piece]], generations: Generations) -> bytes:
        """The whole answer: all pieces of each text."""
        ...

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        """The events of what has arrived. The first call opens the stream."""
        ...

    def last_events(self, generations: Generations) -> bytes:
        """The events that end a complete stream."""
        ...

    def error_events(self, error: CodedError) -> bytes:
        """The events that end a stream with an error, so that it never looks complete."""
        ...
