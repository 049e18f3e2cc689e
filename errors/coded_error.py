"""The base class of all errors with a code."""

from __future__ import annotations

import string
from typing import Any, ClassVar

from errors.bounded_repr import bounded_repr

_MOST_CHARACTERS = 4000
_LAST_CHARACTERS = 1000
"""Characters kept of the end of a longer sentence, where the remedy stands."""


class CodedError(Exception):
    """A failure with a published code; its text is one sentence that says what to do.

    A subclass is one code. ``summary`` is the sentence of the error table. ``template`` is the sentence of
    one error: a format string for the facts given to the constructor. ``error.facts`` holds these facts, so
    that no program needs to parse the sentence.
    """

    code: ClassVar[str]
    summary: ClassVar[str]
    template: ClassVar[str] = ""
    facts: dict[str, object]
    sentence: str

    def __init__(self, **facts: object) -> None:
        self._set(_formatter.format(self.template, **facts) if self.template else self.summary, facts)

    @classmethod
    def restore(cls, sentence: str, facts: dict[str, object]) -> CodedError:
        """Return the same error as raised in another process, which wrote the sentence."""
        error = cls.__new__(cls)
        error._set(sentence, facts)
        return error

    def _set(self, sentence: str, facts: dict[str, object]) -> None:
        self.facts = facts
        self.sentence = one_line(sentence)
        super().__init__(f"{self.code} {type(self).__name__}: {self.sentence}")


class _Formatter(string.Formatter):
    """Formatter that renders no more of a fact, which may be megabytes long, than fits into the sentence."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return bounded_repr(value) if conversion == "r" else super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str) and not format_spec:
            return one_line(value)
        text: str = super().format_field(value, format_spec)
        return text


_formatter = _Formatter()


def cut_text(text: str) -> str:
    """Return the beginning and the end of a text, at most 4,005 characters."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - _LAST_CHARACTERS]} ... {text[-_LAST_CHARACTERS:]}"


def single_spaced(text: object) -> str:
    """Return what a library wrote on several lines with single spaces in place of all white space."""
    return " ".join(str(text).split())


def one_line(sentence: str) -> str:
    """Remove line breaks and unpaired surrogates, for logs, headers and JSON; cut at 4,005 characters."""
    sentence = cut_text(sentence)
    if sentence.isprintable():
        return sentence
    shown = (each if each.isprintable() else repr(each)[1:-1] for each in sentence)
    return "".join(shown)
