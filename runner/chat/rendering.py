"""What the sandboxed process does with a chat: reads and checks its messages, and renders the template."""

import json
import re
from typing import Any, Protocol

import msgspec

from errors.chat import ChatTemplateRefused
from errors.requests import InvalidInput, PromptTooLong
from errors.wire import WireError
from runner.chat.control_tokens import NONE, ControlTokens, Hider
from runner.chat.messages import Message, checked_messages, with_short_ids, with_system_prompt

MAX_TEXT_BYTES = 1 << 24

_NEEDS_SHORT_IDS = re.compile(r"length\s*!=\s*9\b")
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Template(Protocol):
    def render(self, variables: dict[str, Any], /) -> str: ...


class Compile(msgspec.Struct, tag=True):
    """Templates by name; ``place`` is for errors."""

    sources: dict[str, str]
    place: str
    control_tokens: ControlTokens = NONE
    max_bytes: int = MAX_TEXT_BYTES
    """Limit of the text of a ``Render``."""


class Render(msgspec.Struct, tag=True):
    name: str
    messages: Any
    """JSON in a text, or read already."""
    system_prompt: str
    """For messages without one."""
    continues: bool
    """The last message is the beginning of the answer."""
    given: dict[str, Any]
    """The client's other variables of the template."""
    own: dict[str, Any]
    """Ours."""


class Answer(msgspec.Struct):
    """The text of a ``Render``. Errors: E1701 for a ``Compile``; E1002, E1005, E1702 for a ``Render``."""

    text: str = ""
    plain: list[tuple[int, int]] = []
    """Where texts of control tokens came from the client."""
    error: WireError | None = None


def render(template: Template, message: Render, compiled: Compile) -> Answer:
    """Raises E1002, E1005, E1702, and what a template raises."""
    chat = checked_messages(_read(message.messages))
    if _NEEDS_SHORT_IDS.search(compiled.sources[message.name]):
        chat = with_short_ids(chat)
    chat = with_system_prompt(chat, message.system_prompt)
    hider = Hider(compiled.control_tokens)
    chat = hider.hide_messages(chat)
    final = _open_final(chat) if message.continues else ""
    text = template.render({**hider.hide(message.given), **message.own, "messages": chat})
    if message.continues:
        text = _cut_at_tag(text, final)
    text, plain = hider.reveal(text)
    size_bytes = len(text.encode(errors="surrogatepass"))
    if size_bytes > compiled.max_bytes:
        raise PromptTooLong.in_bytes(prompt_bytes=size_bytes, max_bytes=compiled.max_bytes)
    return Answer(text, plain)


def _read(messages: Any) -> Any:
    if not isinstance(messages, str):
        return messages
    try:
        return json.loads(messages)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(name="messages", expected=f"JSON ({exc})", value=messages) from exc


def _open_final(chat: list[Message]) -> str:
    """Mark the end of the last message's content, which the output continues. Returns the content."""
    content = chat[-1].get("content")
    if not isinstance(content, str):
        name = f"messages[{len(chat) - 1}].content"
        raise InvalidInput(name=name, expected="a text to continue", value=content)
    chat[-1]["content"] = content + _CONTINUE_TAG
    return content


def _cut_at_tag(text: str, final: str) -> str:
    """The prompt up to the tag, without trailing space if the template trims the content."""
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0 or final.strip() not in text:
        raise ChatTemplateRefused(reason="it changes the last message, so that can't be continued")
    return text[:at] if text.startswith(_CONTINUE_TAG, at) else text[:at].rstrip()
