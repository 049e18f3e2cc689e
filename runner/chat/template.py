"""Conversion of the messages of a chat to the model's prompt, by the tokenizer's own Jinja template.

The result equals that of ``transformers`` (``apply_chat_template``): same environment, filters, globals and
tags, and the special tokens by name. The template comes with the model, so it is rendered in a sandbox
(``runner.chat.sandbox``).
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from errors.chat import ChatTemplateBroken, ChatTemplateMissing, ChatTemplateRefused
from errors.requests import PromptTooLong
from runner.chat.control_tokens import NONE, ControlTokens, MarkedText
from runner.chat.messages import Message
from runner.chat.renderer import ChatRenderer
from runner.chat.rendering import MAX_TEXT_BYTES, Compile, Render

_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_DOCUMENTS = re.compile(r"\bdocuments\b")
_ADDITIONAL = "additional_chat_templates"
"""Folder of further templates by name, as ``transformers`` saves them."""


@dataclass(eq=False)
class ChatTemplate:
    """Chat template of one model. A model without one is an error only when it renders (E1700)."""

    _sources: Mapping[str, str]
    """Jinja templates by name: ``default``, and optionally ``tool_use`` for tools."""
    _special_tokens: Mapping[str, str]
    _place: str = "the tokenizer"
    _control_tokens: ControlTokens = NONE
    """Tokens that clients may not send: their texts stay plain."""
    _max_bytes: int = MAX_TEXT_BYTES
    """Limit of a prompt, and of what it is made from, as JSON."""
    response_template: object = None
    """Description of the model's answers in tokenizer_config.json."""

    @property
    def exists(self) -> bool:
        return bool(self._sources)

    @property
    def text(self) -> str:
        """Source of all its Jinja templates."""
        return "\n".join(self._sources.values())

    def render(
        self,
        messages: list[Message] | str,
        *,
        system_prompt: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continues: bool = False,
        adds_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        image_mark: str = "",
    ) -> str:
        """Return the prompt with its special tokens, so it is tokenized without adding any.

        It is a ``MarkedText`` if the messages have control tokens. ``messages`` may also be JSON.
        ``system_prompt`` is for messages without one. ``continues``: the last message is the beginning of the
        answer. ``arguments`` are the template's own. ``image_mark`` stands for an
        image. Raises E1002, E1005 for malformed messages, E1700,
        E1701, or E1702 with the template's own message.
        """
        if isinstance(messages, str) and len(messages) > self._max_bytes:
            raise PromptTooLong.in_bytes(prompt_bytes=len(messages), max_bytes=self._max_bytes)
        name = self._name(bool(tools))
        message = Render(
            name=name,
            messages=messages,
            system_prompt=system_prompt,
            continues=continues,
            given={**(arguments or {}), "tools": tools or None, "documents": documents},
            own={"add_generation_prompt": adds_generation_prompt and not continues},
            image_mark=image_mark,
        )
        answer = self._renderer.render(message)
        if documents and _DOCUMENTS.search(self._sources[name]) is None:
            raise ChatTemplateRefused(reason="it has no place for documents; send them in a message")
        return MarkedText(answer.text, answer.plain) if answer.plain else answer.text

    def _name(self, has_tools: bool) -> str:
        if not self._sources:
            raise ChatTemplateMissing
        names = (_WITH_TOOLS, _DEFAULT) if has_tools else (_DEFAULT,)
        name = next((each for each in names if each in self._sources), None)
        if name is None:
            reason = f"it has the templates {', '.join(sorted(self._sources))} and none named {_DEFAULT}"
            raise ChatTemplateBroken(place=self._place, reason=reason)
        return name

    def probe(self, messages: list[Message], tools: Sequence[Mapping[str, Any]], **own: Any) -> str:
        """Return the prompt of ``messages`` as they are: it may leave some out. Raises E1702."""
        given = {"tools": tools, "documents": None}
        probe = Render(self._name(has_tools=True), messages, "", False, given, own, is_probe=True)
        return self._renderer.render(probe).text

    @cached_property
    def _renderer(self) -> ChatRenderer:
        compile_ = Compile(
            {name: text for name, text in self._sources.items() if name in (_DEFAULT, _WITH_TOOLS)},
            self._place,
            dict(self._special_tokens),
            self._control_tokens,
            self._max_bytes,
        )
        return ChatRenderer(compile_)

    def check(self) -> None:
        """Compile the templates now. Raises E1701."""
        if self._sources:
            self._renderer.check()


def load_chat_template(
    engine_dir: Path,
    override: Path | None,
    control_tokens: ControlTokens = NONE,
    max_bytes: int = MAX_TEXT_BYTES,
) -> ChatTemplate:
    """Load the template of the file ``override``, or else of an engine directory. Raises E1701."""
    config = _read_object(engine_dir / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_object(engine_dir / "special_tokens_map.json"))
    file = override or engine_dir / "chat_template.jinja"
    if override is not None or file.is_file():
        sources, place = {_DEFAULT: _read_text(file)}, str(file)
    else:
        named = _read_object(engine_dir / "chat_template.json")
        found = named.get("chat_template", config.get("chat_template"))
        sources, place = _sources(found, engine_dir), str(engine_dir)
    if override is None:
        files = sorted((engine_dir / _ADDITIONAL).glob("*.jinja"))
        sources |= {each.stem: _read_text(each) for each in files}
    described = config.get("response_template")
    return ChatTemplate(sources, special_tokens, place, control_tokens, max_bytes, described)


def _sources(found: object, place: Path) -> dict[str, str]:
    """Return one template, or named ones in a list or an object, as in tokenizer_config.json."""
    if found is None:
        return {}
    if isinstance(found, str):
        return {_DEFAULT: found}
    try:
        if not isinstance(found, dict):
            assert isinstance(found, list)
            found = {each["name"]: each["template"] for each in found}
        assert all(isinstance(each, str) for each in itertools.chain(found, found.values()))
    except (AssertionError, KeyError, TypeError) as exc:
        reason = "it is neither a text nor a list of named texts"
        raise ChatTemplateBroken(place=place, reason=reason) from exc
    return dict(found)


def _special_tokens(*documents: Mapping[str, Any]) -> dict[str, str]:
    """Return ``bos_token`` and the others, each from the first document that has it."""
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
