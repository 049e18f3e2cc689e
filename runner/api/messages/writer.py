"""Answers of Anthropic's Messages API: a message, or a stream of events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from pydantic_core import from_json

from errors.coded_error import CodedError
from runner.api.blocks import Began, Block, Blocks, Ended, Grew, Step
from runner.api.error_response import Fields, messages_error_body
from runner.api.generations import Generations, Piece
from runner.api.messages.answers import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    OutputDetails,
    Ping,
    SignatureDelta,
    Stop,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)

Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop

_SIGNATURE = "cog-triton"
"""Of what the model thought. Some clients do not send thoughts back without one."""
_DELTAS: dict[str, Callable[[str], TextDelta | ThinkingDelta | InputDelta]] = {
    "text": TextDelta,
    "reasoning": ThinkingDelta,
    "call": InputDelta,
}

_encode = msgspec.json.Encoder().encode


class MessagesWriter:
    """An ``AnswerWriter``."""

    def __init__(self, model: str, fields: Fields) -> None:
        self.response_id = f"msg_{secrets.token_hex(12)}"
        self.model = model
        self.fields = fields
        self._blocks = Blocks()
        self._has_started = False
        self._last: Piece | None = None

    def document(self, texts: Sequence[Sequence[Piece]], generations: Generations) -> bytes:
        self._last = texts[0][-1]
        for _ in self._blocks.push(texts[0]):
            pass
        content = [_block(each, each.text) for each in self._blocks.all]
        answer = self._message(content, generations)
        stop = self._stop()
        answer.stop_reason, answer.stop_sequence = stop.stop_reason, stop.stop_sequence
        return _encode(answer)

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        opening: list[Event] = []
        if not self._has_started:
            self._has_started = True
            opening += [MessageStart(self._message([], generations)), Ping()]
        self._last = batch[-1]
        return _written([*opening, *self._events(self._blocks.push(batch))])

    def last_events(self, generations: Generations) -> bytes:
        events = self._events(self._blocks.finish())
        return _written([*events, MessageDelta(self._stop(), _usage(generations)), MessageStop()])

    def error_events(self, error: CodedError) -> bytes:
        return b"event: error\ndata: %b\n\n" % messages_error_body(error, self.fields)

    def _message(self, content: list[AnswerBlock], generations: Generations) -> MessageAnswer:
        return MessageAnswer(
            id=self.response_id, model=self.model, content=content, usage=_usage(generations)
        )

    def _stop(self) -> Stop:
        assert self._last is not None
        reason, sequence = self._last.finish_reason, self._last.stop_sequence
        if reason == "length":
            return Stop("max_tokens", None)
        if self._blocks.has_calls:
            return Stop("tool_use", None)
        return Stop("end_turn", None) if sequence is None else Stop("stop_sequence", sequence)

    def _events(self, steps: Iterable[Step]) -> Iterator[Event]:
        for step in steps:
            index, kind = step.block.index, step.block.kind
            match step:
                case Began(block):
                    yield BlockStart(index, _block(block, ""))
                case Grew(_, text):
                    yield BlockDelta(index, _DELTAS[kind](text))
                case Ended():
                    if kind == "reasoning":
                        yield BlockDelta(index, SignatureDelta(_SIGNATURE))
                    yield BlockStop(index)


def _block(block: Block, text: str) -> AnswerBlock:
    """``text``: so far."""
    match block.kind:
        case "text":
            return TextBlock(text)
        case "reasoning":
            return ThinkingBlock(text, _SIGNATURE if text else "")
        case "call":
            return ToolUseBlock(block.call_id, block.name, _input(text))


def _input(arguments: str) -> dict[str, Any]:
    """Of arguments that were cut: as far as they go, as Anthropic's clients read a stream."""
    try:
        found = from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        found = _with_whole_characters(arguments)
    return found if isinstance(found, dict) else {}


def _with_whole_characters(arguments: str) -> Any:
    """Escapes in JSON can make halves of characters, which ``from_json`` refuses."""
    try:
        whole = json.dumps(json.loads(arguments), ensure_ascii=False).encode(errors="replace")
        return from_json(whole)
    except (ValueError, RecursionError):
        return {}


def _usage(generations: Generations) -> Usage:
    cached_tokens = generations.cached_tokens or 0
    return Usage(
        generations.prompt_tokens - cached_tokens,
        generations.output_tokens,
        OutputDetails(generations.reasoning_tokens or 0),
        cache_read_input_tokens=cached_tokens,
    )


def _written(events: Iterable[Event]) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (_name(each), _encode(each)) for each in events])


def _name(event: Event) -> bytes:
    return str(event.__struct_config__.tag).encode()
