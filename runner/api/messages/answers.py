"""The answers of POST /v1/messages and /v1/messages/count_tokens."""

import msgspec

from runner.api.messages.bodies import TextBlock, ToolUseBlock


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


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


class InputTokens(msgspec.Struct):
    input_tokens: int
