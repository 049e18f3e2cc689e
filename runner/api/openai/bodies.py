"""What clients send: the fields of each endpoint's body, with their limits and meanings.

Strict: a field that is not here is refused by name. ``null`` means that a field was not sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MOST_TOP_LOG_PROBS = 20
MAX_INT32 = (1 << 31) - 1

Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Temperature = Annotated[float, Meta(ge=0, le=2, description="Randomness: 0 is greedy.")]
Share = Annotated[float, Meta(ge=0, le=1)]
Stop = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[Stop], Meta(max_length=16)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
# NOTE: msgspec tells no list of texts from one of lists; what a list mixes is refused later.
Prompt = str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
Object = dict[str, Any]
Schema = Annotated[str | Object, Meta(description="A JSON schema that the output follows.")]
Pattern = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
Tools = Annotated[list[Object], Meta(description="Shown to the model by its chat template.")]
Documents = Annotated[list[Object], Meta(description="For the chat template.")]
GenerationPrompt = Annotated[bool, Meta(description="End with what opens an answer, by default.")]
Continues = Annotated[bool, Meta(description="Continue the last message.")]
TemplateArguments = Annotated[Object, Meta(description="Variables of the chat template.")]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""


class StreamOptions(Body, kw_only=True):
    include_usage: Annotated[bool, Meta(description="End the stream with the usage.")] = False
    continuous_usage_stats: Annotated[bool, Meta(description="Tell the usage so far in every event.")] = False


class PlainText(Body, tag_field="type", tag="text"):
    """No format: whatever the model writes."""


class AnyObject(Body, tag_field="type", tag="json_object"):
    """Any JSON object."""


class DescribedSchema(Body, kw_only=True):
    name: str
    description: str | None = None
    schema: Object
    strict: Annotated[bool, Meta(description="Taken: a schema is always followed.")] | None = None


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    """JSON that the schema allows."""

    json_schema: DescribedSchema


class StructuredOutputs(Body, kw_only=True):
    """vLLM's: one of these."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None


class GenerationBody(Body, kw_only=True):
    """What completions and chat completions have in common."""

    model: Annotated[str, Meta(description="One of GET /v1/models.")] | None = None
    max_tokens: Annotated[Count, Meta(description="Most tokens to generate.")] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32, description="No end before so many.")] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[Share, Meta(description="Sample from the likeliest with this share.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="Sample from so many; 0 and -1: all.")] | None = None
    min_p: Annotated[Share, Meta(description="Least probability, as share of the largest.")] | None = None
    presence_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="Above 0: less of what was there before.")] | None
    ) = None
    frequency_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="Above 0: less of what was there often.")] | None
    ) = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, description="Above 1: less repetition.")] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(description="By token id.")] | None
    ) = None
    seed: Annotated[int, Meta(description="The same gives the same text; else random.")] | None = None
    stop: Annotated[Stop | Stops, Meta(description="Texts to end at.")] | None = None
    ignore_eos: Annotated[bool, Meta(description="Go on to max_tokens.")] | None = None
    response_format: (
        Annotated[PlainText | AnyObject | SchemaFormat, Meta(description="text, json_object or json_schema.")]
        | None
    ) = None
    structured_outputs: (
        Annotated[StructuredOutputs, Meta(description="vLLM's form of the guided fields.")] | None
    ) = None
    guided_json: Schema | None = None
    guided_regex: Annotated[Pattern, Meta(description="Matches the whole output.")] | None = None
    guided_choice: Annotated[Choices, Meta(description="The output is one of these.")] | None = None
    guided_grammar: Annotated[Pattern, Meta(description="GBNF that the output follows.")] | None = None
    n: Annotated[int, Meta(ge=1, le=128, description="How many texts.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Meta(description="Taken, not used.")] | None = None
    metadata: Annotated[dict[str, str], Meta(description="Taken, not used.")] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions"""

    prompt: Annotated[Prompt, Meta(description="A text, token ids, or a list of either.")]
    echo: Annotated[bool, Meta(description="Begin with the prompt.")] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOG_PROBS)] | None = None


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[Object]
    max_completion_tokens: Annotated[Count, Meta(description="Newer name of max_tokens.")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOG_PROBS)] | None = None
    tool_choice: Annotated[Literal["auto", "none"], Meta(description="none: no tools.")] | None = None
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continues | None = None
    chat_template_kwargs: TemplateArguments | None = None


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
