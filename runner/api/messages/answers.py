"""The answers of POST /v1/messages and /v1/messages/count_tokens, and the events of the stream."""

from __future__ import annotations

from typing import Any

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct):
    thinking_tokens: int


class Usage(msgspec.Struct):
    """``input_tokens`` are those that were not cached."""

    input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageAnswer


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: Usage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class InputTokens(msgspec.Struct):
    input_tokens: int
