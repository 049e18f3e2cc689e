"""What every coded error has in common: a code, a name, a published sentence and the facts of this case."""

from __future__ import annotations

from typing import ClassVar


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
        self.sentence = sentence
        super().__init__(f"{self.code} {type(self).__name__}: {sentence}")

    @classmethod
    def from_sentence(cls, sentence: str) -> CodedError:
        """The same error as raised in another process, of which only the sentence is known."""
        error = cls.__new__(cls)
        error._tell(sentence, {})
        return error
