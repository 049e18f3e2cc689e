"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Unknown fields of blocks and tools are ignored, as clients send back what other servers wrote there.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runner.api.openai.bodies import (
    MAX_INT32,
    Body,
    CallArguments,
    Count,
    Object,
    SamplingBody,
    Stop,
    TemplateArguments,
)

NoEffect = Annotated[Any, Meta(description="No effect.")]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Base64Source(msgspec.Struct, tag_field="type", tag="base64"):
    media_type: Annotated[str, Meta(pattern="^image/")]
    data: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class URLSource(msgspec.Struct, tag_field="type", tag="url"):
    url: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    source: Base64Source | URLSource

    @property
    def image_url(self) -> str:
        return self.source.url


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: CallArguments = None


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] = ""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Nothing that this model wrote."""


AssistantBlock = TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextBlock | ImageBlock | ToolResultBlock]


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[AssistantBlock] | None = None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextBlock]


class Tool(msgspec.Struct, kw_only=True):
    type: Annotated[str, Meta(description="custom")] | None = None
    name: str
    input_schema: Object | None = None
    description: str | None = None
    strict: bool | None = None


class Auto(Body, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool = False


class AnyTool(Body, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool = False


class NamedTool(Body, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool = False


class NoTool(Body, tag_field="type", tag="none"):
    disable_parallel_tool_use: bool = False


ToolChoice = Auto | AnyTool | NamedTool | NoTool


class ThinkingEnabled(Body, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)]
    display: NoEffect = None


class ThinkingDisabled(Body, tag_field="type", tag="disabled"):
    budget_tokens: NoEffect = None


class ThinkingAdaptive(Body, tag_field="type", tag="adaptive"):
    display: NoEffect = None


class OutputFormat(Body, tag_field="type", tag="json_schema"):
    schema: Object


class OutputOptions(Body, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: NoEffect = None


class CountTokensBody(SamplingBody, kw_only=True):
    """POST /v1/messages/count_tokens"""

    messages: list[UserMessage | AssistantMessage | SystemMessage]
    system: Annotated[str | list[TextBlock], Meta(description="The system prompt.")] | None = None
    tools: Annotated[list[Tool], Meta(description="Tools that the model may use.")] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive | None = None
    output_config: OutputOptions | None = None
    chat_template_kwargs: TemplateArguments | None = None
    cache_control: NoEffect = None
    context_management: NoEffect = None
    speed: NoEffect = None


class MessagesBody(CountTokensBody, kw_only=True):
    """POST /v1/messages"""

    max_tokens: Annotated[Count, Meta(description="Maximum number of tokens.")]
    stop_sequences: (
        Annotated[list[Stop], Meta(max_length=16, description="The text ends before these strings.")] | None
    ) = None
    metadata: NoEffect = None
    service_tier: NoEffect = None
    inference_geo: NoEffect = None
    diagnostics: NoEffect = None
