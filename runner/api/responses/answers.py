"""The answer of POST /v1/responses."""

from typing import Any

import msgspec

from runner.api.openai.answers import OutputTokens


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: str = "response.input_tokens"


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[str] = []
    logprobs: list[str] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: str
    content: list[ReasoningText]
    summary: list[str] = []
    encrypted_content: None = None


class CallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | msgspec.UnsetType = msgspec.UNSET


Item = MessageItem | ReasoningItem | CallItem


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class Usage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: None = None


class TextOptions(msgspec.Struct):
    format: Any = msgspec.field(default_factory=lambda: {"type": "text"})


class Response(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[Item]
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    usage: Usage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions = msgspec.field(default_factory=ReasoningOptions)
    temperature: float | None = None
    text: TextOptions = msgspec.field(default_factory=TextOptions)
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_p: float | None = None
    background: bool = False
    previous_response_id: None = None
    store: bool = False
    top_logprobs: int = 0
    truncation: str = "disabled"
