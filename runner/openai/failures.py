"""From a coded error to HTTP: its status, and its body in OpenAI's shape."""

from __future__ import annotations

import re

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.base import CodedError
from errors.openai_api import (
    BodyTooLarge,
    InvalidAPIKey,
    RequestTimedOut,
    TooManyRequests,
    UnknownEndpoint,
    UnknownModel,
)
from errors.tensorrt_llm import QueueFull, RankEnded
from errors.triton_arguments import GuideFailed, InvalidGuide
from errors.triton_system import (
    EngineCrashed,
    EngineStartFailed,
    ServerStopping,
    TritonStartFailed,
    TritonTimeout,
    TritonUnavailable,
)
from runner.openai.answers import Error, ErrorAnswer
from runner.openai.calls import call_of

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

_FIELDS = {
    "input_ids": "prompt",
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


def status_of(error: CodedError) -> int:
    return _STATUSES.get(type(error)) or (400 if error.code.startswith("E1") else 500)


def error_body(error: CodedError, guide_field: str | None = None) -> bytes:
    """``{"error": {message, type, param, code}}``; ``code`` is ours. ``guide_field``: see ``Failure``."""
    kind = _TYPES.get(status_of(error), "server_error")
    sentence = error.sentence
    if len(sentence) > _LONGEST_MESSAGE:
        sentence = f"{sentence[:_LONGEST_MESSAGE]} ..."
    return msgspec.json.encode(ErrorAnswer(Error(sentence, kind, _field(error, guide_field), error.code)))


def _field(error: CodedError, guide_field: str | None) -> str | None:
    """The field that the error is about: errors that are say it first."""
    if isinstance(error, UnknownModel):
        return "model"
    is_of_guide = isinstance(error, InvalidGuide | GuideFailed)
    if is_of_guide or error.sentence.startswith(_GUIDE_TENSORS):
        return guide_field
    named = _NAMED_FIRST.match(error.sentence)
    return _FIELDS.get(named[1], named[1]) if named else None


class Failure(Response):
    """An error as an answer."""

    def __init__(self, error: CodedError, guide_field: str | None = None) -> None:
        """``guide_field``: the field, if there is one, that says what the answer must follow."""
        status = status_of(error)
        headers = {"Retry-After": str(_RETRY_AFTER_S[status])} if status in _RETRY_AFTER_S else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(error_body(error, guide_field), status, headers, media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call_of(scope).error = self._error
        await super().__call__(scope, receive, send)
