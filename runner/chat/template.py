"""From the messages of a chat to the prompt of the model, by the tokenizer's own Jinja template.

The result equals that of ``transformers`` (``apply_chat_template``): same environment, filters, globals and
tags, and the special tokens by name. The template comes with the model, so it is rendered in a sandbox
(``runner.chat.sandbox``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from errors.chat import ChatTemplateBroken, ChatTemplateMissing, ChatTemplateRefused
from errors.requests import InvalidInput
from runner.chat.messages import Message, checked_messages, with_system_prompt
from runner.chat.sandbox import ChatRenderer

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"


@dataclass(eq=False)
class ChatTemplate:
    """The chat template of one model. A model without one is an error only when it renders (E1700)."""

    _sources: Mapping[str, str]
    """Jinja templates by name: ``default``, and optionally ``tool_use`` for tools."""
    _special_tokens: Mapping[str, str]
    _place: str = "the tokenizer"

    @property
    def exists(self) -> bool:
        return bool(self._sources)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continues: bool = False,
        adds_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt with its special tokens, so it is tokenized without adding any.

        ``continues``: the last message is the beginning of the answer. ``arguments`` are the template's own.
        Raises E1005 for malformed messages, E1700, E1701, or E1702 with the template's own message.
        """
        chat = checked_messages(messages)
        final = _open_final(chat) if continues else ""
        variables: dict[str, Any] = {**self._special_tokens, **(arguments or {})}
        variables |= {
            "messages": chat,
            "tools": tools or None,
            "documents": documents,
            "add_generation_prompt": adds_generation_prompt and not continues,
        }
        text = self._renderer.render(self._name(bool(tools)), variables)
        return _cut_at_tag(text, final) if continues else text

    def _name(self, has_tools: bool) -> str:
        if not self._sources:
            raise ChatTemplateMissing
        names = (_WITH_TOOLS, _DEFAULT) if has_tools else (_DEFAULT,)
        name = next((each for each in names if each in self._sources), None)
        if name is None:
            reason = f"it has the templates {', '.join(sorted(self._sources))} and none named {_DEFAULT}"
            raise ChatTemplateBroken(place=self._place, reason=reason)
        return name

    @cached_property
    def _renderer(self) -> ChatRenderer:
        return ChatRenderer(self._sources, self._place)

    def check(self) -> None:
        """Compile the templates now. Raises E1701."""
        if self._sources:
            self._renderer.check()


def load_chat_template(engine_dir: Path, override: Path | None) -> ChatTemplate:
    """The template of the file ``override``, or else of an engine directory. Raises E1701."""
    config = _read_object(engine_dir / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_object(engine_dir / "special_tokens_map.json"))
    if override is not None:
        return ChatTemplate({_DEFAULT: _read_text(override)}, special_tokens, str(override))
    file = engine_dir / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate({_DEFAULT: _read_text(file)}, special_tokens, str(file))
    found = _read_object(engine_dir / "chat_template.json").get("chat_template", config.get("chat_template"))
    return ChatTemplate(_sources(found, engine_dir), special_tokens, str(engine_dir))


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


def _sources(found: object, place: Path) -> dict[str, str]:
    """One template or a list of named templates, as in tokenizer_config.json."""
    if found is None:
        return {}
    if isinstance(found, str):
        return {_DEFAULT: found}
    try:
        assert isinstance(found, list)
        return {str(each["name"]): str(each["template"]) for each in found}
    except (AssertionError, KeyError, TypeError) as exc:
        reason = "it is neither a text nor a list of named texts"
        raise ChatTemplateBroken(place=place, reason=reason) from exc


def _special_tokens(*documents: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and the others, each from the first document that has it."""
    tokens: dict[str, str] = {}
    for name in (f"{role}_token" for role in _SPECIAL_TOKENS):
        for document in documents:
            token = document.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                tokens.setdefault(name, text)
    return tokens


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(_read_text(path))
    except (ValueError, RecursionError) as exc:
        raise ChatTemplateBroken(place=path, reason=f"it is not JSON ({exc})") from exc
    return document if isinstance(document, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ChatTemplateBroken(place=path, reason=str(exc)) from exc


def format_chat(template: ChatTemplate, messages: str, *, system_prompt: str) -> str:
    """Render ``messages``, which are JSON; ``system_prompt`` is used if they have none.

    Raises E1005 for invalid messages, and the errors of ``render``.
    """
    try:
        document = json.loads(messages)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(name="messages", expected=f"JSON ({exc})", value=messages) from exc
    return template.render(with_system_prompt(checked_messages(document), system_prompt))
