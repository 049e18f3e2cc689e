"""Program of the sandboxed process: it reads and checks a chat's messages, and renders the template."""

import json
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Any, Protocol

import msgspec

from errors.chat import ChatTemplateRefused
from errors.requests import InvalidInput, PromptTooLong
from errors.wire import WireError
from runner.chat.control_tokens import NONE, ControlTokens, Hider
from runner.chat.form import Form, knows_role, learned_form, takes_images
from runner.chat.messages import Message, checked_messages, with_system_prompt
from runner.chat.turns import Steps, arranged, arrangements, has_words, shape_of, with_words

MAX_TEXT_BYTES = 1 << 24

_PROBE_TOOL = {
    "name": "zqother",
    "description": "A probe.",
    "parameters": {
        "type": "object",
        "properties": {"zqplace": {"type": "string", "description": "A place."}},
    },
}
_PROBED = {
    "add_generation_prompt": True,
    "tools": [{"type": "function", "function": _PROBE_TOOL}],
    "documents": None,
}
_ASKED = {"role": "user", "content": "zquser"}
_MOST_KEPT = 1000
"""Limit of the chat shapes, and of the roles, that are kept."""
_MOST_TRIED = 8000
"""Limit of messages, summed over the arrangements that are tried: a template renders them in 0.1 s."""
_SHORT = 40
"""Length of a chat, in messages, up to which many arrangements are tried."""
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Template(Protocol):
    def render(self, variables: dict[str, Any], /) -> str: ...


class Compile(msgspec.Struct, tag=True):
    """Templates by name; ``place`` is for errors."""

    sources: dict[str, str]
    place: str
    special_tokens: dict[str, str] = {}
    """Variables of the templates."""
    control_tokens: ControlTokens = NONE
    max_bytes: int = MAX_TEXT_BYTES
    """Limit of the text of a ``Render``."""


class Render(msgspec.Struct, tag=True):
    name: str
    messages: Any
    """Messages as JSON in a text, or read already."""
    system_prompt: str
    """System prompt of messages without one."""
    continues: bool
    """True if the last message is the beginning of the answer."""
    given: dict[str, Any]
    """Variables of the template that the client gave."""
    own: dict[str, Any]
    """Variables of the template that we set."""
    is_probe: bool = False
    """True if messages that the template leaves out stay left out."""
    image_mark: str = ""
    """Digits that stand for an image in the text of a message; empty: there are none."""


class Answer(msgspec.Struct):
    """Text of a ``Render``. Errors: E1701 for a ``Compile``; E1002, E1005, E1702 for a ``Render``."""

    text: str = ""
    plain: list[tuple[int, int]] = []
    """Places where texts of control tokens came from the client."""
    error: WireError | None = None


class ChatProgram:
    """Template and what it needs, which is found out by rendering probes."""

    def __init__(self, template: Template, compiled: Compile) -> None:
        self._template = template
        self._compiled = compiled
        self._known_roles: dict[str, bool] = {}
        self._steps: dict[bytes, Steps | None] = {}
        self._form = Form()
        self._no_tools: list[Any] | None = None
        """Value for no tools: some templates need a list also then."""
        if self._probe([_ASKED], tools=None) is None:
            self._no_tools = []
        self._form = learned_form(self._probe)

    def render(self, message: Render) -> Answer:
        """Render a chat. Raises E1002, E1005, E1702, and what the template raises."""
        chat = checked_messages(_read(message.messages), self._knows_role)
        chat = with_system_prompt(chat, message.system_prompt)
        taken = chat if message.is_probe else self._arranged_for(chat, message)
        if message.image_mark and not self._takes_images:
            raise ChatTemplateRefused(reason="it has no place for images")
        hider = Hider(self._compiled.control_tokens)
        chat = hider.hide_messages(chat if taken is None else taken)
        final = _open_final(chat) if message.continues else ""
        text = self._write(
            self._form.given(chat, message.image_mark), {**hider.hide(message.given), **message.own}
        )
        if taken is None:
            _check_complete(chat, text, message.image_mark)
        if message.continues:
            text = _cut_at_tag(text, _after_images(final, message.image_mark))
        text, plain = hider.reveal(text)
        size_bytes = len(text.encode(errors="surrogatepass"))
        if size_bytes > self._compiled.max_bytes:
            raise PromptTooLong.in_bytes(prompt_bytes=size_bytes, max_bytes=self._compiled.max_bytes)
        return Answer(text, plain)

    def _write(self, chat: list[Message], variables: dict[str, Any]) -> str:
        variables = {**self._compiled.special_tokens, **variables, "messages": chat}
        return self._template.render({**variables, "tools": variables.get("tools") or self._no_tools})

    def _probe(self, chat: list[Message], **variables: Any) -> str | None:
        """Return the prompt of a chat that has the template's form. None if the template refuses it."""
        try:
            return self._write(chat, {**_PROBED, **variables})
        except Exception:  # noqa: BLE001 - as the sandbox does: a template fails with anything
            return None

    @cached_property
    def _takes_images(self) -> bool:
        return takes_images(self._probe)

    def _knows_role(self, role: str) -> bool:
        if role not in self._known_roles:
            if len(self._known_roles) > _MOST_KEPT:
                self._known_roles.clear()
            self._known_roles[role] = knows_role(lambda chat: self._probe(self._form.given(chat)), role)
        return self._known_roles[role]

    def _arranged_for(self, chat: list[Message], message: Render) -> list[Message] | None:
        """Return the first arrangement of which the template writes every message. None if there is none."""
        variables = dict(message.own)
        if not message.given.get("tools"):
            variables["tools"] = None
        steps = self._steps_for(chat, variables)
        return None if steps is None else arranged(chat, steps)

    def _steps_for(self, chat: list[Message], variables: dict[str, Any]) -> Steps | None:
        """Find the steps with short texts, on which they do not depend, once for all chats of the shape."""
        key = sha256(repr((shape_of(chat), variables)).encode()).digest()
        if key not in self._steps:
            if len(self._steps) > _MOST_KEPT:
                self._steps.clear()
            words = with_words(chat)
            tried = islice(arrangements(words), max(_MOST_TRIED // len(chat), 2))
            found = next((steps for steps, made in tried if self._writes(made, variables)), None)
            if found is None and len(chat) > _SHORT:  # Few were tried: try those of its beginning.
                steps = self._steps_for(chat[:_SHORT], variables)
                found = steps if steps and self._writes(arranged(words, steps), variables) else None
            self._steps[key] = found
        return self._steps[key]

    def _writes(self, chat: list[Message], variables: dict[str, Any]) -> bool:
        text = self._probe(self._form.given(chat), **variables)
        return text is not None and has_words(text, chat)


def _check_complete(chat: list[Message], text: str, image_mark: str) -> None:
    """Raise E1702 for a message that the template left out."""
    at = 0
    for index, message in enumerate(chat):
        content = _after_images(message.get("content", ""), image_mark).strip()
        found = text.find(content, at)
        at = found if found >= 0 else text.find(content)
        if at < 0:
            reason = f"it leaves out message {index + 1} of {len(chat)}, of the role {message['role']}"
            raise ChatTemplateRefused(reason=reason)


def _after_images(content: str, image_mark: str) -> str:
    """Return the text after the last image: templates write images with texts of their own."""
    return content.rpartition(image_mark)[-1] if image_mark else content


def _read(messages: Any) -> Any:
    if not isinstance(messages, str):
        return messages
    try:
        return json.loads(messages)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(name="messages", expected=f"JSON ({exc})", value=messages) from exc


def _open_final(chat: list[Message]) -> str:
    """Mark the end of the last message's content, which the output continues. Return the content."""
    content = chat[-1].get("content")
    if not isinstance(content, str):
        name = f"messages[{len(chat) - 1}].content"
        raise InvalidInput(name=name, expected="a text to continue", value=content)
    chat[-1]["content"] = content + _CONTINUE_TAG
    return content


def _cut_at_tag(text: str, final: str) -> str:
    """Return the prompt up to the tag, without trailing space if the template trims the content."""
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0 or final.strip() not in text:
        raise ChatTemplateRefused(reason="it changes the last message, so that can't be continued")
    return text[:at] if text.startswith(_CONTINUE_TAG, at) else text[:at].rstrip()
