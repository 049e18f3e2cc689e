"""Answers of Anthropic's Messages API: a message, or a stream of events."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from pydantic_core import from_json

from errors.coded_error import CodedError
from runner.api.blocks import Block, Blocks, Step
from runner.api.error_response import Fields, messages_error_body
from runner.api.generations import Generations, Piece
from runner.api.messages.answers import AnswerBlock, MessageAnswer, OutputDetails, ThinkingBlock, Usage
from runner.api.messages.bodies import TextBlock, ToolUseBlock
from runner.observability.request_id import random_id

_SIGNATURE = "cog-triton"
"""Signature of thoughts. Some clients do not send thoughts back without one."""
_DELTA = b"""event: content_block_delta
data: {"type":"content_block_delta","index":%d,"delta":{"type":"%b_delta","%b":%b}}

"""
_DELTAS = {
    "text": (b"text", b"text"),
    "reasoning": (b"thinking",) * 2,
    "call": (b"input_json", b"partial_json"),
}
"""Type and field of a delta, by the kind of the block."""

_encode = msgspec.json.Encoder().encode


class MessagesWriter:
    """An ``AnswerWriter``."""

    idle_event = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, model: str, fields: Fields) -> None:
        self.response_id = f"msg_{random_id(24)}"
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
        answer.stop_reason, answer.stop_sequence = self._stop()
        return _encode(answer)

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        opening = b""
        if not self._has_started:
            self._has_started = True
            opening = _event("message_start", message=self._message([], generations)) + self.idle_event
        self._last = batch[-1]
        return opening + b"".join(self._events(self._blocks.push(batch)))

    def last_events(self, generations: Generations) -> bytes:
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        end = _event("message_delta", delta=delta, usage=_usage(generations)) + _event("message_stop")
        return b"".join(self._events(self._blocks.finish())) + end

    def error_events(self, error: CodedError) -> bytes:
        return b"event: error\ndata: %b\n\n" % messages_error_body(error, self.fields)

    def _message(self, content: list[AnswerBlock], generations: Generations) -> MessageAnswer:
        return MessageAnswer(
            id=self.response_id, model=self.model, content=content, usage=_usage(generations)
        )

    def _stop(self) -> tuple[str, str | None]:
        """Return the reason why the answer ended, and its stop sequence."""
        assert self._last is not None
        reason, sequence = self._last.finish_reason, self._last.stop_sequence
        if reason == "length":
            return "max_tokens", None
        if self._blocks.has_calls:
            return "tool_use", None
        return "end_turn" if sequence is None else "stop_sequence", sequence

    def _events(self, steps: Iterable[Step]) -> Iterator[bytes]:
        for what, block, text in steps:
            index, kind = block.index, block.kind
            match what:
                case "began":
                    yield _event("content_block_start", index=index, content_block=_block(block, ""))
                case "grew":
                    yield _DELTA % (index, *_DELTAS[kind], _encode(text))
                case "ended":
                    if kind == "reasoning":
                        yield _DELTA % (index, b"signature", b"signature", _encode(_SIGNATURE))
                    yield _event("content_block_stop", index=index)


def _block(block: Block, text: str) -> AnswerBlock:
    """Return the block with ``text``, which is all so far."""
    match block.kind:
        case "text":
            return TextBlock(text)
        case "reasoning":
            return ThinkingBlock(text, _SIGNATURE if text else "")
        case "call":
            return ToolUseBlock(block.call_id, block.name, _input(text))


def _input(arguments: str) -> dict[str, Any]:
    """Parse arguments, which may be cut, as far as they go, as Anthropic's clients read a stream.

    What is no object is told as it is, because a call without its arguments is another call.
    """
    if arguments.strip() in ("", "null"):
        return {}
    try:
        found = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        found = _read_leniently(arguments)
    return found if isinstance(found, dict) else {"arguments": arguments}


def _read_leniently(arguments: str) -> Any:
    """Read line breaks in strings and halves of characters, which ``from_json`` refuses; else return None."""
    try:
        whole = json.dumps(json.loads(arguments, strict=False), ensure_ascii=False)
        return from_json(whole.encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _usage(generations: Generations) -> Usage:
    cached_tokens = generations.cached_tokens or 0
    return Usage(
        generations.prompt_tokens - cached_tokens,
        generations.output_tokens,
        OutputDetails(generations.reasoning_tokens or 0),
        cache_read_input_tokens=cached_tokens,
    )


def _event(name: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))
