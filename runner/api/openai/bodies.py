"""The bodies of requests: the fields of each endpoint, with their limits and meanings.

An unknown field is an error that names it. ``null`` means that a field was not sent.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from runner.api.openai.neutral import NEUTRAL_IN_CHATS, NEUTRAL_IN_COMPLETIONS, NEUTRAL_VALUES
from runner.engines.protocol.checks import MAX_CACHE_SALT, MAX_LOGIT_BIASES, MAX_TOP_LOG_PROBS

_MAX_KEYS = 10_000
_MAX_TOOLS = 1024
MAX_TOOL_NAME = 128
MAX_INT32 = (1 << 31) - 1

Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Temperature = Annotated[float, Meta(ge=0, le=2, description="Randomness; 0 is greedy.")]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], Meta(max_length=MAX_LOGIT_BIASES)]
Share = Annotated[float, Meta(ge=0, le=1)]
Stop = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[Stop], Meta(max_length=16)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
_MAX_STOP_TOKENS = 128
StopTokenIds = Annotated[
    list[TokenId],
    Meta(max_length=_MAX_STOP_TOKENS, description="Tokens that end the text. They are not part of it."),
]
# NOTE: msgspec can't tell a list of strings from a list of lists; ``openai.requests`` refuses a mixture.
Prompt = str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
Salt = Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)]
Priority = Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)]
Object = dict[str, Any]
Schema = Annotated[str | Object, Meta(description="A JSON schema that the output follows.")]
Pattern = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
# NOTE: ``$`` alone also matches before a line break at the end.
ToolName = Annotated[str, Meta(pattern=rf"^[a-zA-Z0-9_-]{{1,{MAX_TOOL_NAME}}}$(?!\n)")]
Documents = Annotated[list[Object], Meta(description="Passed to the chat template.")]
GenerationPrompt = Annotated[bool, Meta(description="Open an answer at the end of the prompt.")]
Continues = Annotated[bool, Meta(description="Continue the last message.")]
CallArguments = str | Object | list[Any] | None
"""Arguments of a call in the history: an object, or what the model wrote instead."""
TemplateArguments = Annotated[Object, Meta(description="Variables of the chat template.")]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = NEUTRAL_VALUES
    """Values of unknown fields that count as not sent."""


class StreamOptions(Body, kw_only=True):
    include_usage: Annotated[bool, Meta(description="End the stream with the usage.")] = False
    continuous_usage_stats: Annotated[bool, Meta(description="Send the usage so far in each event.")] = False
    include_obfuscation: Annotated[bool, Meta(description="No effect: events are not padded.")] = False


class PlainText(Body, tag_field="type", tag="text"):
    """Text without a format."""


class AnyObject(Body, tag_field="type", tag="json_object"):
    """Any JSON object."""


class DescribedSchema(Body, kw_only=True):
    name: str
    description: str | None = None
    schema: Object
    strict: Annotated[bool, Meta(description="No effect: a schema is always followed.")] | None = None


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    """JSON that matches the schema."""

    json_schema: DescribedSchema


Format = PlainText | AnyObject | SchemaFormat


class StructuredOutputs(Body, kw_only=True):
    """vLLM's guided fields: one of these."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None


class FunctionName(Body):
    name: ToolName


class Function(Body, kw_only=True):
    name: ToolName
    description: str | None = None
    parameters: Annotated[Object, Meta(description="A JSON schema of the arguments.")] | None = None
    strict: Annotated[bool, Meta(description="Calls always match the schema.")] | None = None


class Tool(Body, tag_field="type", tag="function"):
    """A function that the model may call."""

    function: Function


class NamedTool(Body, tag_field="type", tag="function"):
    """A call of this tool."""

    function: FunctionName


class ToolSubset(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=_MAX_TOOLS)]


class AllowedTools(Body, tag_field="type", tag="allowed_tools"):
    """Some of the tools."""

    allowed_tools: ToolSubset


Tools = Annotated[list[Tool], Meta(max_length=_MAX_TOOLS, description="Functions that the model may call.")]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools
NoEffect = Annotated[str, Meta(description="No effect.")]
Budget = Annotated[int, Meta(ge=0, le=MAX_INT32, description="Maximum number of tokens of reasoning.")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class SamplingBody(Body, kw_only=True):
    """The fields of all APIs that generate text."""

    model: Annotated[str, Meta(description="One of GET /v1/models.")] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32, description="Minimum number of tokens.")] | None = (
        None
    )
    temperature: Temperature | None = None
    top_p: (
        Annotated[
            Share, Meta(description="Total probability of the tokens to sample from (nucleus sampling).")
        ]
        | None
    ) = None
    top_k: (
        Annotated[
            int, Meta(ge=-1, description="Number of most likely tokens to sample from (0 or -1: no limit).")
        ]
        | None
    ) = None
    min_p: (
        Annotated[Share, Meta(description="Minimum probability, relative to the most likely token.")] | None
    ) = None
    presence_penalty: (
        Annotated[Penalty, Meta(description="Values above 0 discourage tokens that were used before.")] | None
    ) = None
    frequency_penalty: (
        Annotated[Penalty, Meta(description="Values above 0 discourage tokens in proportion to their use.")]
        | None
    ) = None
    repetition_penalty: (
        Annotated[float, Meta(ge=0.01, description="Values above 1 discourage repetition.")] | None
    ) = None
    logit_bias: Annotated[Biases, Meta(description="Added to the scores of these token ids.")] | None = None
    seed: Annotated[int, Meta(description="The same seed gives the same text.")] | None = None
    ignore_eos: (
        Annotated[bool, Meta(description="Generate up to max_tokens, past the end of the text.")] | None
    ) = None
    skip_special_tokens: (
        Annotated[bool, Meta(description="Set to false to keep special tokens in the text.")] | None
    ) = None
    cache_salt: (
        Annotated[Salt, Meta(description="Cached prefixes are shared only by requests with the same value.")]
        | None
    ) = None
    priority: Annotated[Priority, Meta(description="Requests with lower values start earlier.")] | None = None
    max_queue_ms: (
        Annotated[Count, Meta(description="Fail with 429 if there is no first token within this time.")]
        | None
    ) = None
    stream: bool | None = None


class GenerationBody(SamplingBody, kw_only=True):
    """The fields of both completions and chat completions."""

    max_tokens: Annotated[Count, Meta(description="Maximum number of tokens to generate.")] | None = None
    stop: (
        Annotated[Stop | Stops, Meta(description="Strings that end the text. They are not part of it.")]
        | None
    ) = None
    stop_token_ids: StopTokenIds | None = None
    response_format: Annotated[Format, Meta(description="text, json_object or json_schema.")] | None = None
    structured_outputs: (
        Annotated[StructuredOutputs, Meta(description="vLLM's name of the guided fields.")] | None
    ) = None
    guided_json: Schema | None = None
    guided_regex: (
        Annotated[Pattern, Meta(description="Regular expression that the whole output matches.")] | None
    ) = None
    guided_choice: Annotated[Choices, Meta(description="The output is one of these texts.")] | None = None
    guided_grammar: Annotated[Pattern, Meta(description="GBNF grammar of the output.")] | None = None
    n: Annotated[int, Meta(ge=1, le=128, description="Number of answers.")] | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Meta(description="No effect.")] | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=_MAX_KEYS, description="No effect.")] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions"""

    neutral_values = NEUTRAL_IN_COMPLETIONS

    prompt: Annotated[Prompt, Meta(description="A string, token ids, or a list of either.")]
    echo: Annotated[bool, Meta(description="Start the text with the prompt.")] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOG_PROBS)] | None = None


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions"""

    neutral_values = NEUTRAL_IN_CHATS

    messages: list[Object]
    max_completion_tokens: Annotated[Count, Meta(description="Newer name of max_tokens.")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOG_PROBS)] | None = None
    tools: Tools | None = None
    tool_choice: (
        Annotated[ToolChoice, Meta(description="Whether the model may or must call tools.")] | None
    ) = None
    parallel_tool_calls: Annotated[bool, Meta(description="Set to false for at most one call.")] | None = None
    reasoning_effort: Annotated[Effort, Meta(description="Passed to the chat template.")] | None = None
    thinking_token_budget: Budget | None = None
    include_reasoning: (
        Annotated[bool, Meta(description="Set to false to leave the reasoning out.")] | None
    ) = None
    documents: Documents | None = None
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continues | None = None
    chat_template_kwargs: TemplateArguments | None = None
    modalities: Annotated[list[Literal["text"]], Meta(description="No effect.")] | None = None
    store: Annotated[bool, Meta(description="No effect: nothing is stored.")] | None = None
    service_tier: NoEffect | None = None
    verbosity: NoEffect | None = None
    prompt_cache_key: NoEffect | None = None
    prompt_cache_options: Annotated[Object, Meta(description="No effect.")] | None = None
    prompt_cache_retention: NoEffect | None = None
    safety_identifier: NoEffect | None = None


class EmbeddingBody(Body, kw_only=True):
    """POST /v1/embeddings"""

    input: Annotated[Prompt, Meta(description="A string, token ids, or a list of either.")]
    model: Annotated[str, Meta(description="One of GET /v1/models.")] | None = None
    encoding_format: Annotated[
        Literal["float", "base64"], Meta(description="base64: little-endian 32-bit floats.")
    ] = "float"
    dimensions: Annotated[Count, Meta(description="Number of dimensions of an embedding.")] | None = None
    user: Annotated[str, Meta(description="No effect.")] | None = None


class TokenizeBody(Body, kw_only=True):
    """POST /tokenize"""

    model: str | None = None
    prompt: Annotated[str, Meta(description="Either this or messages.")] | None = None
    messages: list[Object] | None = None
    add_special_tokens: bool | None = None
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continues | None = None
    chat_template_kwargs: TemplateArguments | None = None


class DetokenizeBody(Body, kw_only=True):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[TokenId]
