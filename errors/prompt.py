"""10xx: what a caller of any framework can get wrong."""

from __future__ import annotations

from errors.base import CodedError


class GenericError(CodedError):
    code = "E1000"
    summary = "Generic user error (reserved)"


class PromptRequired(CodedError):
    code = "E1001"
    summary = "A prompt is required, but your formatted prompt is blank"


class PromptTooLong(CodedError):
    code = "E1002"
    summary = "Prompt length exceeds maximum input length."
    template = (
        "Prompt length ({prompt_tokens}) exceeds maximum input length ({max_input_tokens}); "
        "shorten the prompt by at least {excess_tokens} tokens."
    )

    def __init__(self, *, prompt_tokens: int, max_input_tokens: int) -> None:
        super().__init__(
            prompt_tokens=prompt_tokens,
            max_input_tokens=max_input_tokens,
            excess_tokens=prompt_tokens - max_input_tokens,
        )


class BadPromptTemplate(CodedError):
    code = "E1003"
    summary = "You have submitted both a prompt and a prompt template that doesn't include '{prompt}'."
    template = summary.replace("{prompt}", "{{prompt}}") + " Add '{{prompt}}' to the template."


class PromptTemplateError(CodedError):
    code = "E1004"
    summary = "Prompt template must be a valid python format spec"
    template = (
        summary + ", but {reason}: did you submit your prompt as `prompt_template`? "
        "Braces, as in JSON, are read as fields; double them to mean themselves."
    )


class InvalidInput(CodedError):
    code = "E1005"
    summary = "An input has a value outside what it allows"
    template = "{name} must be {expected}, but is {value!r}."


class InvalidSetting(CodedError):
    code = "E1006"
    summary = "A setting (environment variable or configuration key) has a value it does not allow"
    template = "{name} must be {expected}, but is {value!r}."


class PortInUse(CodedError):
    code = "E1007"
    summary = "A port is already taken by another program"
    template = (
        "Port {port} for {purpose} is already in use; "
        "stop the program that holds it or set {variable} to a free port."
    )


class MissingRequirement(CodedError):
    code = "E1008"
    summary = "Something this machine must provide is missing"
    template = "{what} was not found; {remedy}."


class ClientStalled(CodedError):
    code = "E1009"
    summary = "The client stopped reading its stream"
    template = (
        "The client left {waiting_bytes} bytes of its stream unread for {timeout_s:g} s; read it as it comes."
    )
