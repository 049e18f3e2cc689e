"""Coded errors as HTTP responses: their status, and a body in OpenAI's or Anthropic's format."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors import api
from errors.chat import ChatTemplateMissing, ChatTemplateRefused
from errors.coded_error import CodedError
from errors.engines import EngineAsleep, EngineCrashed, EngineStartFailed, ImagesWaiting, QueueFull, RankEnded
from errors.external_triton import ExternalTritonUnavailable
from errors.requests import (
    GuideFailed,
    ImageRefused,
    ImagesUnsupported,
    InvalidGuide,
    PromptTooLong,
    QueueDeadlinePassed,
    UnknownAdapter,
    UnsupportedArgument,
)
from errors.triton import ServerStopping, StartFailed, TritonTimeout, TritonUnavailable
from runner.api.call import call_of

_UNAVAILABLE = (
    *(TritonUnavailable, StartFailed, ExternalTritonUnavailable),
    *(EngineAsleep, EngineCrashed, EngineStartFailed, RankEnded),
)
_STATUSES: dict[int, tuple[type[CodedError], ...]] = {
    401: (api.InvalidAPIKey, api.InvalidAdminKey),
    403: (api.AdminKeyNotSet,),
    404: (api.UnknownModel, UnknownAdapter, api.UnknownEndpoint),
    408: (api.RequestNotReceived,),
    413: (api.BodyTooLarge,),
    415: (api.UnsupportedContentType,),
    421: (api.HostNotAllowed,),
    429: (api.TooManyRequests, ImagesWaiting, QueueFull, QueueDeadlinePassed, api.ReceivingTooMuch),
    431: (api.HeaderTooLarge,),
    503: (*_UNAVAILABLE, ServerStopping, api.TooManyConnections),
    504: (TritonTimeout, api.RequestTimedOut),
}
"""Statuses by error. Others are 400 if the caller has to fix them (E1...), else 500."""
_TYPES = {
    **dict.fromkeys((400, 408, 413, 415, 417, 421, 431, 501, 505), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MESSAGES_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error", 504: "timeout_error"}
"""Types that Anthropic's API calls otherwise."""
_MESSAGES_PATH = "/v1/messages"
_MAX_MESSAGE_CHARACTERS = 1000
"""Limit of a message, which quotes the request, whose parts may be of any length."""
_LAST_CHARACTERS = 300
_RETRY_AFTER_S = {429: 1, 503: 2}

_PROMPTS = ("input_ids", "prompt")
_GUIDE_TENSORS = ("guided_decoding_guide_type", "guided_decoding_guide")
_ENFORCED = {"tools": "tool_choice (required, or a named tool) or strict"}
"""Words for the fields that ask for a guide, by the field."""
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
    "lora_name": "model",
}
"""Fields by the names of the slot's tensors, where they differ."""


class Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    error: Error


def status_of(error: CodedError) -> int:
    if isinstance(error, api.UnsupportedHTTP):
        return cast(int, error.facts["status"])
    known = (status for status, kinds in _STATUSES.items() if isinstance(error, kinds))
    return next(known, 400 if error.code.startswith("E1") else 500)


@dataclass(frozen=True)
class Fields:
    """Names that fields of this request have in errors."""

    prompt: str | None = None
    guide: str | None = None
    """The first field that constrains the output."""
    names: Sequence[tuple[str, str]] = ()
    """Regular expressions of fields that this API calls otherwise than chat completions, and their names."""

    def rename(self, field: str) -> str:
        changed = (re.sub(pattern, name, field) for pattern, name in self.names)
        return next((each for each in changed if each != field), field)


def error_body(error: CodedError, fields: Fields) -> bytes:
    """Return ``{"error": {message, type, param, code}}``; ``code`` is ours."""
    return msgspec.json.encode(ErrorAnswer(describe(error, fields)))


def messages_error_body(error: CodedError, fields: Fields) -> bytes:
    """Return ``{"type": "error", "error": {type, message, param, code}}``, as Anthropic's API answers."""
    described = describe(error, fields)
    described.type = _MESSAGES_TYPES.get(status_of(error), described.type)
    return msgspec.json.encode({"type": "error", "error": described})


def body_of(path: str) -> Callable[[CodedError, Fields], bytes]:
    """Return the function that writes the body of an error of this path."""
    return messages_error_body if path.startswith(_MESSAGES_PATH) else error_body


def describe(error: CodedError, fields: Fields) -> Error:
    # NOTE: frames hold the request's body, and refer to the error: a cycle, which stays for long.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    kind = _TYPES.get(status_of(error), "server_error")
    field, sentence = _field_and_sentence(error, fields)
    if len(sentence) > _MAX_MESSAGE_CHARACTERS:
        # NOTE: cut the middle, because the remedy stands at the end.
        first = _MAX_MESSAGE_CHARACTERS - _LAST_CHARACTERS
        sentence = f"{sentence[:first]} ... {sentence[-_LAST_CHARACTERS:]}"
    error.facts.pop("value", None)  # It may be all of the body too.
    return Error(sentence, kind, field, error.code)


def _field_and_sentence(error: CodedError, fields: Fields) -> tuple[str | None, str]:
    """Return the error's field, and its sentence with the field's name in place of a tensor's."""
    name, sentence = error.facts.get("name"), error.sentence
    if isinstance(error, api.UnknownModel):
        return "model", sentence
    if isinstance(error, PromptTooLong):
        return fields.prompt, sentence
    if isinstance(error, ChatTemplateMissing | ChatTemplateRefused):
        return fields.prompt or "messages", sentence
    if isinstance(error, UnsupportedArgument) and name in _GUIDE_TENSORS and fields.guide is not None:
        asked = _ENFORCED.get(fields.guide, fields.guide)
        _, verb, rest = sentence.rpartition(" is not ")
        return fields.guide, asked + verb + rest
    if isinstance(error, InvalidGuide | GuideFailed) or name in _GUIDE_TENSORS:
        return fields.guide, sentence
    if not isinstance(name, str):
        return None, sentence
    field = fields.prompt if name in _PROMPTS else fields.rename(_FIELDS.get(name, name))
    is_of_image = isinstance(error, ImageRefused | ImagesUnsupported)
    top = fields.prompt if is_of_image else _top_field(field or name)
    return top, sentence.replace(name, field or name, 1)


def _top_field(path: str) -> str | None:
    """Return ``stop`` for ``stop[0]``; None for a name that is no field, such as a file's."""
    field = path.replace("[", ".").partition(".")[0]
    return field if field.isidentifier() else None


class ErrorResponse(Response):
    """The answer to a request that failed before its response started."""

    def __init__(self, error: CodedError, fields: Fields | None = None) -> None:
        status = status_of(error)
        headers = {"Retry-After": str(_RETRY_AFTER_S[status])} if status in _RETRY_AFTER_S else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(None, status, headers, media_type="application/json")
        self._error = error
        self._fields = fields or Fields()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call_of(scope).error = self._error
        self.body = body_of(scope["path"])(self._error, self._fields)
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
