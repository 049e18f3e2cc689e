"""Prompts, templates and chats of callers: out come their texts and nothing of ours."""

from __future__ import annotations

import string
from functools import cache

from errors.coded_error import CodedError
from runner.chat.template import ChatTemplate
from runner.settings.prompt_template import format_prompt
from tests.fuzz.choices import Choices, as_json
from tests.fuzz.refusal import check_refusal
from tests.runner.api.apis import CHAT_TEMPLATE

_PIECES = (
    *("{prompt}", "{system_prompt}", "{{", "}}", "{", "}", "{prompt.__class__}", "{prompt[0]}", "{0}", "{}"),
    *("{prompt!r}", "{prompt:>9999999999}", "{prompt:{system_prompt}}", "{prompt.__init__.__globals__}", "a"),
    *("{system_prompt.format}", "{prompt!s:}", "{ prompt}", "{prompt }", "{self}", "{{prompt}}", "\0", "%s"),
    *("{prompt!}", "{prompt:", "[", "]", "!", ":", "{prompt.}", "{prompt[}", "\n", "é", "{__import__('os')}"),
)
_PROMPTS = ("hello", "{prompt}", "{system_prompt.__class__}", "", " ", "{", "%s", "\ud800")
_MESSAGE_KEYS = (
    *("role", "content", "tool_calls", "function", "arguments", "name", "type", "text", "id", "tool_call_id"),
)
_WORDS = (
    *("user", "system", "assistant", "text", "tool", "{}", "[" * 3000, "{{ 7 * 7 }}", "hi"),
    [{"type": "text", "text": "hi"}],
    [{"function": {"name": "f", "arguments": "{}"}}],
    [{"function": {"name": "f", "arguments": "[" * 5000}}],
)


def prompt_template(data: bytes) -> None:
    choices = Choices(data)
    template = "".join(choices.some(_PIECES, 5)) + (choices.text() if choices.flag() else "")
    prompt, system_prompt = choices.of(_PROMPTS), choices.of(_PROMPTS)
    try:
        text = format_prompt(template, prompt=prompt, system_prompt=system_prompt)
    except CodedError as exc:
        check_refusal(exc, "E100")
        return
    assert text == _filled(template, {"prompt": prompt, "system_prompt": system_prompt})


def _filled(template: str, texts: dict[str, str]) -> str:
    """Without ``str.format``: nothing but texts is put in."""
    parts = []
    for literal, field, _, _ in string.Formatter().parse(template):
        parts += [literal, "" if field is None else texts[field]]
    return "".join(parts)


def messages(data: bytes) -> None:
    choices = Choices(data)
    chat = [
        {"role": "user", "content": "hi", **choices.object(_MESSAGE_KEYS, _WORDS)}
        for _ in range(choices.below(4))
    ]
    document = choices.of(
        (as_json(chat), as_json(choices.value(_WORDS, _MESSAGE_KEYS)), b"[" * 100_000, b"[{]")
    )
    try:
        messages = choices.damaged(document).decode("utf-8", "replace")
        _template().render(messages, system_prompt=choices.text())
    except CodedError as exc:
        check_refusal(exc, "E1")


@cache
def _template() -> ChatTemplate:
    """One for all: its process takes 0.2 s to start."""
    return ChatTemplate({"default": CHAT_TEMPLATE}, {})
