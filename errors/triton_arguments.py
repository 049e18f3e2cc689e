"""11xx: arguments of a request that the Triton path can't accept."""

from __future__ import annotations

from errors.base import CodedError


class InvalidArgumentMinTokens(CodedError):
    code = "E1101"
    summary = "Can't set both min_tokens ({min_tokens}) and min_new_tokens ({min_new_tokens})"
    template = summary + "; leave one out."


class InvalidArgumentMaxTokens(CodedError):
    code = "E1102"
    summary = "Can't set both max_tokens ({max_tokens}) and max_new_tokens ({max_new_tokens})"
    template = summary + "; leave one out."


class InvalidTensor(CodedError):
    code = "E1103"
    summary = "A tensor of a Triton request is missing or has a value the model does not allow"
    template = "{name} must be {expected}, but is {value!r}."


class UnsupportedArgument(CodedError):
    code = "E1104"
    summary = "The engine that serves this model can't honour an argument"
    template = "{name}={value!r} can't be honoured by the {engine_kind} engine; {remedy}."


class InvalidGuide(CodedError):
    code = "E1105"
    summary = (
        "A JSON schema, regular expression or grammar that the output is to follow is wrong or not supported"
    )
    template = "The {guide_type} can't guide the output: {reason}."


class GuideFailed(CodedError):
    code = "E1106"
    summary = "An output could not follow its JSON schema, regular expression or grammar any further"
    template = "The output can't follow its {guide_type} after {tokens} tokens: {reason}."
