"""Control tokens in the texts of a chat: hidden from the tokenizer while the template is rendered.

What a client sends is given to the template with a placeholder for each control token in it. Every control
token in the template's output is then the template's own, and the placeholders mark what has to stay plain
text. A placeholder has digits only, so that no filter of a template changes it.
"""

import os
import re
import secrets
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

_NONCE = 10**24
_INDEX_DIGITS = 6
_MOST_HIDDEN = 1 << 15
"""Limit of control tokens' texts in one chat. Each makes a part of its own for the tokenizer."""


class ControlTokens(msgspec.Struct, frozen=True):
    """Texts of a tokenizer's control tokens."""

    special: Sequence[str] = ()
    others: Sequence[str] = ()
    """Texts that look like special tokens, such as ``<think>``: plain, except in what the assistant said."""


NONE = ControlTokens()


class MarkedText(str):
    """Prompt of which some parts are plain text, though they look like control tokens.

    ``plain``: the parts, as (start, end) in characters, in order, that must not become control tokens.
    """

    plain: Sequence[tuple[int, int]]

    def __new__(cls, text: str, plain: Sequence[tuple[int, int]]) -> "MarkedText":
        made = super().__new__(cls, text)
        made.plain = plain
        return made


class Hider:
    """Placeholders of one chat: it hides the control tokens and finds them again."""

    def __init__(self, tokens: ControlTokens) -> None:
        self._special = _any_of(tokens.special)
        self._all = _any_of([*tokens.special, *tokens.others])
        self._nonce = str(_NONCE + secrets.randbelow(_NONCE))
        self._hidden: list[str] = []

    def hide_messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            self._in(each, self._special if each.get("role") == "assistant" else self._all)
            for each in messages
        ]

    def hide(self, value: Any) -> Any:
        """Put placeholders into ``value``, of JSON's types."""
        return self._in(value, self._all)

    def reveal(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return ``text`` without placeholders, and where the hidden texts stand in it."""
        if not self._hidden:
            return text, []
        parts = re.split(f"{self._nonce}([0-9]{{{_INDEX_DIGITS}}})", text)
        places = []
        at = 0
        for number, part in enumerate(parts):
            if number % 2:
                parts[number] = part = self._hidden[int(part)]
                places.append((at, at + len(part)))
            at += len(part)
        return "".join(parts), places

    def _in(self, value: Any, pattern: re.Pattern[str] | None) -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(self._placeholder, value)
        if isinstance(value, list):
            return [self._in(each, pattern) for each in value]
        if isinstance(value, dict):
            return {self._in(key, pattern): self._in(each, pattern) for key, each in value.items()}
        return value

    def _placeholder(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        if len(self._hidden) > _MOST_HIDDEN:
            raise ValueError(f"they have more than {_MOST_HIDDEN} texts of control tokens")
        return f"{self._nonce}{len(self._hidden) - 1:0{_INDEX_DIGITS}}"


def longest_of(texts: Collection[str]) -> str:
    """Return a regular expression for the longest of ``texts``, whose common beginnings it compares once."""
    branches = []
    for _, group in groupby(sorted(filter(None, texts)), itemgetter(0)):
        same = list(group)
        begin = os.path.commonprefix(same)
        rests = [each[len(begin) :] for each in same]
        branches.append(re.escape(begin) + (longest_of(rests) if len(rests) > 1 else ""))
    return f"(?:{'|'.join(branches)}){'?' if '' in texts else ''}"


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Return a regular expression for any of ``texts``; None if there are none."""
    found = {*texts} - {""}
    return re.compile(longest_of(found)) if found else None
