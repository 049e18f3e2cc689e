"""From a coded error to HTTP: its status, and its body in OpenAI's shape."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.api import (
    BodyTooLarge,
    InvalidAPIKey,
    RequestTimedOut,
    TooManyRequests,
    UnknownEndpoint,
    UnknownModel,
)
from errors.chat import ChatTemplateMissing, ChatTemplateRefused
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineStartFailed, QueueFull, RankEnded
from errors.requests import GuideFailed, InvalidGuide, PromptTooLong
from errors.triton import ServerStopping, TritonStartFailed, TritonTimeout, TritonUnavailable
from runner.api.call import call_of

_STATUSES: dict[type[CodedError], int] = {
    InvalidAPIKey: 401,
    UnknownModel: 404,
    UnknownEndpoint: 404,
    BodyTooLarge: 413,
    TooManyRequests: 429,
    QueueFull: 429,
    TritonUnavailable: 503,
    TritonStartFailed: 503,
    EngineCrashed: 503,
    EngineStartFailed: 503,
    RankEnded: 503,
    ServerStopping: 503,
    TritonTimeout: 504,
    RequestTimedOut: 504,
}
"""Others are 400 if they are the caller's to fix (E1...), 500 if ours."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_LONGEST_MESSAGE = 1000
"""In characters: a message quotes what was sent, which may be anything."""
_GUIDE_TENSORS = "guided_decoding"
"""What the names of the slot's two tensors for guides begin with."""
_RETRY_AFTER_S = {429: 1, 503: 2}

_PROMPT_TENSOR = "input_ids"
_FIELDS = {
    "request_output_len": "max_tokens",
    "min_length": "min_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "random_seed": "seed",
    "return_log_probs": "logprobs",
    "num_top_log_probs": "top_logprobs",
    "logit_bias_ids": "logit_bias",
    "logit_bias_values": "logit_bias",
}
"""Fields by the names of the slot's tensors, where they differ."""
_NAMED_FIRST = re.compile(r"(?:The field )?([a-z_]\w*)\S*(?: must be |=| is not one | can't be )")


class Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    error: Error


def status_of(error: CodedError) -> int:
    return _STATUSES.get(type(error)) or (400 if error.code.startswith("E1") else 500)


@dataclass(frozen=True)
class Fields:
    """Fields of a request that errors call by other names."""

    prompt: str | None = None
    """What has the prompt."""
    guide: str | None = None
    """What says what the answer must follow, if anything does."""


def error_body(error: CodedError, fields: Fields) -> bytes:
    """``{"error": {message, type, param, code}}``; ``code`` is ours."""
    kind = _TYPES.get(status_of(error), "server_error")
    field, sentence = _named(error, fields)
    if len(sentence) > _LONGEST_MESSAGE:
        sentence = f"{sentence[:_LONGEST_MESSAGE]} ..."
    return msgspec.json.encode(ErrorAnswer(Error(sentence, kind, field, error.code)))


def _named(error: CodedError, fields: Fields) -> tuple[str | None, str]:
    """The field that the error is about, which such errors say first, and its sentence with that name."""
    sentence = error.sentence
    if isinstance(error, UnknownModel):
        return "model", sentence
    if isinstance(error, PromptTooLong):
        return fields.prompt, sentence
    if isinstance(error, ChatTemplateMissing | ChatTemplateRefused):
        return "messages", sentence
    if isinstance(error, InvalidGuide | GuideFailed) or sentence.startswith(_GUIDE_TENSORS):
        return fields.guide, sentence
    if not (named := _NAMED_FIRST.match(sentence)):
        return None, sentence
    field = fields.prompt if named[1] == _PROMPT_TENSOR else _FIELDS.get(named[1])
    if field is None:
        return named[1], sentence
    return field, sentence[: named.start(1)] + field + sentence[named.end(1) :]


class Failure(Response):
    """An error as an answer."""

    def __init__(self, error: CodedError, fields: Fields | None = None) -> None:
        status = status_of(error)
        headers = {"Retry-After": str(_RETRY_AFTER_S[status])} if status in _RETRY_AFTER_S else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = error_body(error, fields or Fields())
        super().__init__(body, status, headers, media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call_of(scope).error = self._error
        await super().__call__(scope, receive, send)
