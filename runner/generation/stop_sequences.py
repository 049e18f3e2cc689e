"""The stop sequences of a request: their limits, and the automaton that finds them.

The automaton is made state by state as a text reaches them, so that stop sequences cost memory only as far as
a text follows them. All texts of a request share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from errors.requests import InvalidInput

MAX_STOPS = 64
MAX_STOP_BYTES = 4096


class StopSequences(tuple[str, ...]):
    """Stop sequences without empty ones. Raises E1005 if they are too many or too long."""

    def __new__(cls, stops: Iterable[str] = ()) -> StopSequences:
        if isinstance(stops, StopSequences):
            return stops
        made = super().__new__(cls, filter(None, stops))
        if len(made) > MAX_STOPS:
            expected = f"at most {MAX_STOPS} texts"
            raise InvalidInput(name="stop sequences", expected=expected, value=list(made))
        for stop in made:
            if len(stop) > MAX_STOP_BYTES or len(stop.encode(errors="replace")) > MAX_STOP_BYTES:
                expected = f"texts of at most {MAX_STOP_BYTES} bytes"
                raise InvalidInput(name="stop sequences", expected=expected, value=stop)
        return made

    @cached_property
    def start(self) -> SearchState:
        """Return the state of the empty text."""
        return SearchState(self, 0)

    @cached_property
    def _first_character(self) -> re.Pattern[str]:
        return re.compile(f"[{''.join(re.escape(each[0]) for each in self)}]")

    def extended(self, further: Iterable[str]) -> StopSequences:
        """Add ``further`` spellings, without the limits."""
        return super().__new__(StopSequences, [*self, *further])

    @classmethod
    def split(cls, text: str) -> StopSequences:
        """Return the stop sequences of a comma-separated text."""
        # NOTE: checked first, as a text of commas makes a list many times its size.
        if len(text) > MAX_STOPS * (MAX_STOP_BYTES + 1):
            expected = f"at most {MAX_STOPS} texts of at most {MAX_STOP_BYTES} bytes"
            raise InvalidInput(name="stop sequences", expected=expected, value=text)
        return cls(text.split(","))

    def find_first_character(self, text: str, at: int) -> int:
        """Return the first index from ``at`` where a stop sequence can begin; ``len(text)`` without one."""
        found = self._first_character.search(text, at)
        return found.start() if found else len(text)


class SearchState:
    """A state of an Aho-Corasick automaton: the longest beginning of a stop sequence that ends a text."""

    __slots__ = ("_children", "_shorter", "_stops", "depth", "longest_stop")

    def __init__(self, stops: Iterable[str], depth: int, shorter: SearchState | None = None) -> None:
        self.depth = depth
        """Length of that beginning."""
        self._stops = tuple(stops)
        """Stop sequences that begin with it."""
        self._shorter = shorter
        """The state of its longest proper suffix that is one; None for the start."""
        self._children: dict[str, SearchState | None] = {
            each[depth]: None for each in stops if len(each) > depth
        }
        """States by the next character; None: not made yet."""
        own = next((each for each in stops if depth and len(each) == depth), "")
        self.longest_stop: str = own or (shorter.longest_stop if shorter is not None else "")
        """The longest stop sequence that it ends with, or an empty text."""

    def step(self, character: str) -> SearchState:
        """Return the state after one more character of text."""
        state = self
        while character not in state._children:
            if state._shorter is None:
                return state
            state = state._shorter
        return state._children[character] or state._grow(character)

    def _grow(self, character: str) -> SearchState:
        # NOTE: this recursion is at most as deep as there are stop sequences: each level needs another one.
        shorter = self if self._shorter is None else self._shorter.step(character)
        depth = self.depth
        stops = [each for each in self._stops if len(each) > depth and each[depth] == character]
        self._children[character] = child = SearchState(stops, depth + 1, shorter)
        return child
