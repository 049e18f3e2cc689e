"""What every coded error has in common: a code, a name, a published sentence and the facts of this case."""

from __future__ import annotations

from typing import ClassVar

_MOST_CHARACTERS = 4000
_LAST_CHARACTERS = 1000
"""Of a longer sentence, what is kept of its end, where the remedy stands."""


class CodedError(Exception):
    """A failure with a published code; its text is one sentence that says what to do.

    A subclass is one code. ``summary`` is the sentence the error table publishes; ``template``, if
    there are facts to tell, is the sentence raised, a format string filled with the facts given to
    the constructor. The facts stay readable as ``error.facts``: programs need not parse text.
    """

    code: ClassVar[str]
    summary: ClassVar[str]
    template: ClassVar[str] = ""

    def __init__(self, **facts: object) -> None:
        self._tell(self.template.format(**facts) if self.template else self.summary, facts)

    def _tell(self, sentence: str, facts: dict[str, object]) -> None:
        self.facts = facts
        self.sentence = _one_line(sentence)
        super().__init__(f"{self.code} {type(self).__name__}: {self.sentence}")

    @classmethod
    def from_sentence(cls, sentence: str) -> CodedError:
        """The same error as raised in another process, of which only the sentence is known."""
        error = cls.__new__(cls)
        error._tell(sentence, {})
        return error


def _one_line(sentence: str) -> str:
    """Fit for a log, a header and JSON, whatever was quoted: no line break, no half a character, no book."""
    if len(sentence) > _MOST_CHARACTERS:
        first = _MOST_CHARACTERS - _LAST_CHARACTERS
        sentence = f"{sentence[:first]} ... {sentence[-_LAST_CHARACTERS:]}"
    if sentence.isprintable():
        return sentence
    shown = (each if each.isprintable() else repr(each)[1:-1] for each in sentence)
    return "".join(shown)
