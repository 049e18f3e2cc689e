"""17xx: messages of a chat, and the template that makes a prompt of them."""

from errors.coded_error import CodedError


class ChatTemplateMissing(CodedError):
    code = "E1700"
    summary = "Messages were sent, but the model has no chat template"
    template = (
        "The model's tokenizer has no chat template; send a prompt instead of messages, "
        "or set CHAT_TEMPLATE to a file with one."
    )


class ChatTemplateBroken(CodedError):
    code = "E1701"
    summary = "The model's chat template can't be used"
    template = (
        "The chat template of {place} can't be used: {reason}; set CHAT_TEMPLATE to a file with another."
    )


class ChatTemplateRefused(CodedError):
    code = "E1702"
    summary = "The model's chat template rejects the messages"
    template = "The model's chat template does not take these messages: {reason}."


class PromptOrMessages(CodedError):
    code = "E1703"
    summary = "A request needs either a prompt or messages"
    template = "Send either prompt or messages, {given}."


class ControlTokensInText(CodedError):
    code = "E1704"
    summary = "A message has the text of a control token, which this tokenizer can't read as plain text"
    template = (
        "A message has the text of a control token ({token}), which can't be read as plain text: {reason}; "
        "take it out, or set ALLOW_SPECIAL_TOKENS=true if clients may send control tokens."
    )
