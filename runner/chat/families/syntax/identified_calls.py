"""Calls as an id, a name and an object of JSON, each after a marker of its own."""

from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.syntax.reader import Reader, Reading

NAME, PART = "<|tool_call:name|>", "<|begin|>assistant"

GUIDED_ID = "call"
"""Id of all calls in guided answers."""


class IdentifiedCalls(NamedCalls, frozen=True):
    """Calls with an id before the name."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, NAME)

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        id_ = yield from reader.name()
        yield from reader.expect(NAME)
        name, _ = yield from super()._header(reader)
        return name, "" if id_ == GUIDED_ID else id_
