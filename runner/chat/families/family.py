"""Model family: how its models write calls of tools and reasoning."""

from typing import Protocol

import msgspec

from runner.chat.families.syntax.reader import Reader, Reading
from runner.chat.families.tools import ToolUse


class CallSyntax(Protocol):
    """Syntax of calls."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Markers before calls."""

    @property
    def bare(self) -> str:
        """Characters with which calls may begin without a marker, at the beginning of the content."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of the syntax, ``begins`` included."""

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        """Read calls to their end. ``begin`` was read before them; it is empty for bare calls.

        Raises NotACall for text. Markers without a call between them are left out.
        """


class Span(msgspec.Struct, frozen=True):
    """Part of an answer between two markers."""

    begin: str
    end: str


NOTHING = Span("", "")
THINK = Span("<think>", "</think>")


class Family(msgspec.Struct, frozen=True):
    name: str
    calls: CallSyntax | None = None
    reasoning: Span | None = None
    wrappers: tuple[Span, ...] = ()
    """Markers around the content: models write one pair or none. One without a beginning always ends."""
    ends_reasoning: tuple[str, ...] = ()
    """Markers before calls that also end reasoning where they are no tokens."""
    bare_anywhere: str = ""
    """Characters with which calls may begin without a marker anywhere in the content."""
    has_channels: bool = False
    """True if an answer is several messages with headers (harmony)."""

    def opens_reasoning(self, prompt: str) -> bool:
        """Return True if the prompt, as the template made it, ends with the beginning of reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.begin)


class AnswerForm(msgspec.Struct, frozen=True):
    """Form in which the answer to one request is read."""

    family: Family
    tools: ToolUse | None = None
    """Tools of the request; None: nothing is a call."""
    starts_in_reasoning: bool = False
    """True if the prompt has opened the reasoning: see ``Family.opens_reasoning``."""
