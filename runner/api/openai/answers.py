"""Answers in OpenAI's formats, and those of the endpoints beside them."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


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


class Message(msgspec.Struct):
    content: str
    role: str = "assistant"


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


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
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "cog-triton"


class Models(msgspec.Struct):
    data: list[Model]
    object: str = "list"


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]


class Text(msgspec.Struct):
    prompt: str


class State(msgspec.Struct):
    status: str
