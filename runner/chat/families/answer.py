"""State machine of an answer: what all forms of answers have in common."""

from collections.abc import Iterable

from tokenizers import Tokenizer

from runner.chat.families.family import AnswerForm
from runner.chat.families.markers import markers_of
from runner.chat.families.parts import Part
from runner.chat.families.syntax.reader import Reader, Reading


class AnswerReader:
    """Reader of one answer. ``markers`` has the characters to push for some tokens; others are text."""

    needs_single_tokens: bool = False
    """True if several tokens must be pushed one by one, so that those of the reasoning can be counted."""

    def __init__(self, form: AnswerForm, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        self.markers = markers_of(tokenizer, tuple(markers))
        self.is_reasoning = form.starts_in_reasoning
        self._tools = form.tools
        self._reader = Reader(self.markers)
        self._steps = self._read()

    @property
    def num_sections(self) -> int:
        """Number of calls and changes between reasoning and content."""
        return self._reader.num_sections

    def push(self, text: str) -> list[Part]:
        """Read further text, which is not empty, and return the parts that it makes certain."""
        reader = self._reader
        search = reader.search
        # NOTE: most tokens take this path, which must take less than a microsecond.
        if search is not None and search(text) is None:
            copied = reader.copied
            if copied is not None and (part := copied(text)) is not None:
                return [part]
            reader.sink(text)
            return reader.take_parts()
        reader.text = reader.text[reader.at :] + text
        reader.at = 0
        next(self._steps)
        return reader.take_parts()

    def finish(self) -> list[Part]:
        """End the answer and return the rest."""
        self._reader.is_ended = True
        for _ in self._steps:
            pass
        return self._reader.take_parts()

    def _read(self) -> Reading[None]:
        raise NotImplementedError
