"""10xx and 11xx: what a request can get wrong, whichever API it comes by."""

from __future__ import annotations

from errors.coded_error import CodedError


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

    @classmethod
    def in_bytes(cls, *, prompt_bytes: int, max_bytes: int) -> CodedError:
        """Make the error of a prompt that is rejected before it is tokenized."""
        sentence = (
            f"Prompt length ({prompt_bytes} bytes) exceeds maximum input length ({max_bytes} bytes); "
            "shorten the prompt, or raise MAX_PROMPT_BYTES."
        )
        return cls.restore(sentence, {"prompt_bytes": prompt_bytes, "max_bytes": max_bytes})


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
    summary = "An input has a value outside its limits"
    template = "{name} must be {expected}, but is {value!r}."

    @classmethod
    def missing(cls, name: str) -> CodedError:
        """Make the error of a field that is required."""
        return cls.restore(f"{name} is required.", {"name": name, "expected": "given", "value": None})


class ClientStalled(CodedError):
    code = "E1009"
    summary = "The client stopped reading its stream"
    template = (
        "The client left {waiting_bytes} bytes of its stream unread for {timeout_s:g} s; read it as it comes."
    )


class WrongTask(CodedError):
    code = "E1011"
    summary = "An embedding model was asked to generate text, or a generating model to make embeddings"
    template = "This server's model {model_task}: {remedy}."


class QueueDeadlinePassed(CodedError):
    code = "E1012"
    summary = "A request was not begun within its max_queue_ms"
    template = (
        "The engine did not begin this request within {max_queue_ms} ms; "
        "send it again later, or with a larger max_queue_ms."
    )


class UnsupportedOrder(CodedError):
    code = "E1013"
    summary = "The engine can't load LoRA adapters while it serves, or can't sleep"
    template = "The {engine_kind} engine can't {action}; {remedy}."


class AdapterRefused(CodedError):
    code = "E1014"
    summary = "A LoRA adapter can't be loaded or unloaded while the engine serves"
    template = "The LoRA adapter {adapter!r} is refused: {reason}."


class UnknownAdapter(CodedError):
    code = "E1015"
    summary = "No LoRA adapter of that name was loaded while the engine serves"
    template = "The LoRA adapter {adapter!r} is not loaded; GET /v1/models lists those that are."


class ImagesUnsupported(CodedError):
    code = "E1016"
    summary = "A message has an image, which the engine, its model or this API does not take"
    template = "{name} is an image, but {reason}; {remedy}."


class ImageRefused(CodedError):
    code = "E1017"
    summary = "An image in a message can't be fetched or decoded, or is above a limit"
    template = "{name} can't be used: {reason}; {remedy}."


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
    summary = "A tensor of a Triton request is missing or has an invalid value"
    template = "{name} must be {expected}, but is {value!r}."


class UnsupportedArgument(CodedError):
    code = "E1104"
    summary = "The engine that serves this model does not support an argument"
    template = "{name}={value!r} is not supported by the {engine_kind} engine; {remedy}."


class InvalidGuide(CodedError):
    code = "E1105"
    summary = "A JSON schema, regular expression or grammar for the output is invalid or not supported"
    template = "The {guide_type} can't guide the output: {reason}."


class GuideFailed(CodedError):
    code = "E1106"
    summary = "The output could not continue to follow its JSON schema, regular expression or grammar"
    template = "The output can't follow its {guide_type} after {tokens} tokens: {reason}."
