"""The body of POST /v1/responses.

Unknown fields of items, content and tools are ignored, as clients send back what other servers wrote there.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from runner.api.openai.bodies import (
    MAX_TOOL_NAME,
    AnyObject,
    Body,
    Budget,
    CallArguments,
    Count,
    Object,
    PlainText,
    SamplingBody,
    TemplateArguments,
)

NoEffect = Annotated[Any, Meta(description="No effect.")]
Refused = Annotated[Any, Meta(description="Not supported: nothing is stored or run by this server.")]


class NamedSchema(Body, tag_field="type", tag="json_schema", kw_only=True):
    """JSON that matches the schema."""

    name: str
    schema: Object
    description: str | None = None
    strict: Annotated[bool, Meta(description="No effect: a schema is always followed.")] | None = None


class TextOptions(Body, kw_only=True):
    format: PlainText | AnyObject | NamedSchema | None = None
    verbosity: NoEffect = None


class ReasoningOptions(Body, kw_only=True):
    effort: str | None = None
    summary: NoEffect = None
    generate_summary: NoEffect = None
    context: NoEffect = None
    mode: NoEffect = None


class FunctionTool(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Namespace(msgspec.Struct, kw_only=True):
    """Functions of one origin, such as an MCP server that the client asks."""

    name: Annotated[str, Meta(max_length=MAX_TOOL_NAME)]
    tools: list[Object]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str
    """A URL: this server stores no files."""


class SummaryText(msgspec.Struct):
    text: str


Content = str | list[InputText | OutputText | Refusal | InputImage]


class MessageItem(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: CallArguments = None
    namespace: str | None = None


class FunctionCallOutput(msgspec.Struct):
    call_id: str
    output: Content


class ReasoningItem(msgspec.Struct):
    summary: list[SummaryText] = []
    content: list[SummaryText] | None = None


Item = MessageItem | FunctionCall | FunctionCallOutput | ReasoningItem
ITEMS: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
}


class ResponsesBody(SamplingBody, kw_only=True):
    """POST /v1/responses"""

    input: Annotated[str | list[Object], Meta(description="A text, or the items of the conversation.")]
    instructions: Annotated[str, Meta(description="The system message.")] | None = None
    max_output_tokens: Annotated[Count, Meta(description="Maximum number of tokens.")] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[Object], Meta(description="Functions that the model may call.")] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: one call at most.")] | None = None
    thinking_token_budget: Budget | None = None
    chat_template_kwargs: TemplateArguments | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16, description="Returned.")] | None = None
    include: list[str] | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Meta(le=0)] | None = None
    store: Annotated[bool, Meta(description="No effect: nothing is stored.")] | None = None
    background: Annotated[bool, Meta(description="Only false.")] | None = None
    previous_response_id: Refused = None
    conversation: Refused = None
    prompt: Refused = None
    context_management: Refused = None
    moderation: Refused = None
    client_metadata: NoEffect = None
    max_tool_calls: NoEffect = None
    prompt_cache_key: NoEffect = None
    prompt_cache_options: NoEffect = None
    prompt_cache_retention: NoEffect = None
    safety_identifier: NoEffect = None
    service_tier: NoEffect = None
    stream_options: NoEffect = None
    user: NoEffect = None
