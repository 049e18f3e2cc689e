"""Answers in OpenAI's formats, and those of the endpoints beside them."""

from datetime import datetime
from typing import Generic, TypeVar

import msgspec


class OutputTokens(msgspec.Struct):
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Draft tokens of speculative decoding, also the next one."""
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class InputTokens(msgspec.Struct):
    cached_tokens: int


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Embeddings(msgspec.Struct):
    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: OutputTokens | msgspec.UnsetType = msgspec.UNSET
    prompt_tokens_details: InputTokens | msgspec.UnsetType = msgspec.UNSET


class TopLogProb(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogProb(TopLogProb):
    top_logprobs: list[TopLogProb]


class ChatLogProbs(msgspec.Struct):
    content: list[ChatLogProb]


class CompletionLogProbs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class Message(msgspec.Struct):
    """``content`` is null beside calls without a text."""

    content: str | None
    role: str = "assistant"
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The same, by the name that other clients read."""
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """The first one of a call has all fields; then only its arguments grow."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: Message
    logprobs: ChatLogProbs | None
    finish_reason: str | None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogProbs | None
    finish_reason: str | None


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogProbs | None
    finish_reason: str | None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice
C = TypeVar("C", bound=Choice)


class Answer(msgspec.Struct, Generic[C], omit_defaults=True):
    """A whole answer, or one event of a stream. ``usage`` is left out of a stream without it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct):
    """A model, with the fields of both OpenAI's and Anthropic's API."""

    id: str
    created: int
    max_model_len: int
    parent: str | None
    """Model that a LoRA adapter belongs to."""
    display_name: str
    created_at: datetime
    digest: str | msgspec.UnsetType = msgspec.UNSET
    """Digest of a LoRA adapter."""
    object: str = "model"
    type: str = "model"
    owned_by: str = "cog-triton"


class Models(msgspec.Struct):
    """One page of all."""

    data: list[Model]
    first_id: str
    last_id: str
    has_more: bool = False
    object: str = "list"


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]


class Rendered(msgspec.Struct, omit_defaults=True):
    """A prompt as the engine gets it: the fields of vLLM's answer that routers read."""

    request_id: str
    token_ids: list[int]
    model: str
    cache_salt: str | None = None
    priority: int | None = None


class Text(msgspec.Struct):
    prompt: str


class State(msgspec.Struct):
    status: str
