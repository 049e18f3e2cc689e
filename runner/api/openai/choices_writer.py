"""Choices (completions and chat completions) in one document, or in events that end with ``[DONE]``."""

import time
from collections.abc import Sequence

import msgspec

from errors.coded_error import CodedError
from runner.api.error_response import Fields, error_body
from runner.api.generation_response import COMMENT
from runner.api.generations import Generations, Piece
from runner.api.openai.answers import Answer, Choice, InputTokens, OutputTokens, Usage
from runner.api.openai.bodies import ChatBody, GenerationBody, StreamOptions
from runner.api.openai.formats import Format
from runner.api.openai.guides import error_field
from runner.chat.families.parts import Content
from runner.observability.request_id import random_id

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_MARK = "\0"
"""Mark in place of a text in an event. No later field has one."""


class ChoicesWriter:
    """An ``AnswerWriter``."""

    idle_event = COMMENT

    def __init__(self, body: GenerationBody, formatter: Format, model: str) -> None:
        self.response_id = formatter.id_prefix + random_id(24)
        self.model = model
        self.fields = Fields("messages" if isinstance(body, ChatBody) else "prompt", error_field(body))
        self._options = body.stream_options or StreamOptions()
        self._has_usage = bool(self._options.continuous_usage_stats)
        self._no_usage = None if self._options.include_usage else msgspec.UNSET
        self._format = formatter
        self._created = int(time.time())
        self._templates: dict[int, tuple[bytes, bytes] | None] = {}
        """Event before and after a text alone, by the index of an opened text; None: not made yet."""

    def document(self, texts: Sequence[Sequence[Piece]], generations: Generations) -> bytes:
        choices = [self._format.whole(pieces) for pieces in texts]
        return _encode(self._answer(self._format.whole_object, choices, _usage(generations)))

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        if len(batch) == 1:
            return self._events_of(batch[0], generations)
        return b"".join([self._events_of(piece, generations) for piece in batch])

    def _events_of(self, piece: Piece, generations: Generations) -> bytes:
        """Write a piece. NOTE: a hot path: an event of a text alone differs from the last in its text."""
        index = piece.index
        is_opened = index in self._templates
        if is_opened and (text := _text_alone(piece)) and not self._has_usage:
            template = self._templates[index] or self._make_template(index)
            return b"%b%b%b" % (template[0], _encode(text), template[1])
        usage = _usage(generations) if self._has_usage else self._no_usage
        events = [self._event([each], usage) for each in self._format.events(piece)]
        if not is_opened:
            self._templates[index] = None
            if (opening := self._format.opening(index)) is not None:
                events.insert(0, self._event([opening], usage))
        return b"".join(events)

    def _make_template(self, index: int) -> tuple[bytes, bytes]:
        event = self._event(self._format.events(Piece(index, _MARK)), self._no_usage)
        before, _, after = event.rpartition(_encode(_MARK))
        template = self._templates[index] = before, after
        return template

    def last_events(self, generations: Generations) -> bytes:
        if self._options.include_usage:
            return self._event([], _usage(generations)) + _DONE
        return _DONE

    def error_events(self, error: CodedError) -> bytes:
        """Return the events without ``[DONE]``, as the text is not complete."""
        return b"data: %b\n\n" % error_body(error, self.fields)

    def _event(self, choices: list[Choice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        return b"data: %b\n\n" % _encode(self._answer(self._format.event_object, choices, usage))

    def _answer(
        self, kind: str, choices: list[Choice], usage: Usage | msgspec.UnsetType | None
    ) -> Answer[Choice]:
        return Answer(self.response_id, kind, self._created, self.model, choices, usage)


def _text_alone(piece: Piece) -> str:
    """Return the text of a piece that has nothing else; else an empty text."""
    if piece.finish_reason is not None or piece.log_probs:
        return ""
    if len(piece.parts) == 1 and isinstance(part := piece.parts[0], Content):
        return part.text
    return "" if piece.parts else piece.text


def _usage(generations: Generations) -> Usage:
    prompt_tokens, output_tokens = generations.prompt_tokens, generations.output_tokens
    usage = Usage(prompt_tokens, output_tokens, prompt_tokens + output_tokens)
    if (cached_tokens := generations.cached_tokens) is not None:
        usage.prompt_tokens_details = InputTokens(cached_tokens)
    reasoning_tokens, drafted = generations.reasoning_tokens, generations.drafted
    if reasoning_tokens is not None or drafted is not None:
        known = msgspec.UNSET if reasoning_tokens is None else reasoning_tokens
        usage.completion_tokens_details = OutputTokens(known, *(drafted or ()))
    return usage
