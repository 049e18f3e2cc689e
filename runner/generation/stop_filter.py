"""Stop sequences in a stream of text: the text before the first one is returned, no part of it is."""

from __future__ import annotations

import re
from collections.abc import Iterable


class StopFilter:
    """Cuts one stream of text where the first of its stop sequences begins.

    All that ``push`` and ``finish`` return, concatenated, is the text up to the smallest index at which any
    of ``stops`` occurs, or the whole text, however it is split over the pushes. Text is held back only while
    it may be part of a stop sequence, so always less than the longest one.

    ``matched`` is None until the cut is certain. This may be after a stop sequence is complete, because one
    that began earlier may still become complete. It is set by the push that decides it (or by ``finish``).
    From then on no text is returned, so the stream may be cancelled. It is the sequence found at the cut, the
    shortest if several begin there. Comparison is by code points. Empty stop sequences are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.matched: str | None = None
        stops = [stop for stop in stops if stop]
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""
        self._candidate: tuple[int, str] | None = None
        """Where a complete stop sequence starts in ``_held``, and it. An earlier one may still follow."""

    def push(self, text: str) -> str:
        """The text that is certain now; if this push decides a match, the text before it."""
        if self.matched is not None:
            return ""
        if self._automaton is None:
            return text
        unseen = len(self._held)
        text = self._held + text
        return self._cut(text) if self._decides(text, unseen) else self._hold_back(text)

    def finish(self) -> str:
        """The text that was held back, up to a match. Nothing is pushed afterwards."""
        if self._candidate is not None:
            return self._cut(self._held)
        rest, self._held = self._held, ""
        return rest

    def _decides(self, text: str, at: int) -> bool:
        """Follow ``text`` from index ``at``; True as soon as no stop sequence can precede the candidate."""
        automaton = self._automaton
        assert automaton is not None
        while at < len(text):
            if self._state == 0:
                at = automaton.find_first_character(text, at)
                if at == len(text):
                    return False
            self._state = state = automaton.step(self._state, text[at])
            at += 1
            complete = automaton.longest_stop[state]
            if complete and (self._candidate is None or at - len(complete) < self._candidate[0]):
                self._candidate = (at - len(complete), complete)
            if self._candidate is not None and self._candidate[0] <= at - automaton.depth[state]:
                return True
        return False

    def _hold_back(self, text: str) -> str:
        """Return ``text`` up to where a stop sequence may have begun, and hold back the rest."""
        assert self._automaton is not None
        shown = len(text) - self._automaton.depth[self._state]
        self._held = text[shown:]
        if self._candidate is not None:
            start, stop = self._candidate
            self._candidate = (start - shown, stop)
        return text[:shown]

    def _cut(self, text: str) -> str:
        """Return ``text`` up to the candidate, which is the match."""
        assert self._candidate is not None
        start, self.matched = self._candidate
        self._held = ""
        self._candidate = None
        return text[:start]


class _Automaton:
    """Aho-Corasick automaton: finds prefixes of stop sequences at the end of the text.

    A state stands for the longest prefix of any stop sequence that the text ends with. State 0 is the empty
    string. Per state: ``depth`` is its length; ``longest_stop`` is the longest stop sequence that it ends
    with, or "".
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.depth = [0]
        self.longest_stop = [""]
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        """Per state, the state of its longest proper suffix that is a state."""
        for stop in stops:
            self._add(stop)
        self._link()
        self._first_character = re.compile(f"[{''.join(map(re.escape, self._next[0]))}]")

    def find_first_character(self, text: str, at: int) -> int:
        """The first index from ``at`` where a stop sequence can begin; ``len(text)`` without one."""
        found = self._first_character.search(text, at)
        return found.start() if found else len(text)

    def step(self, state: int, character: str) -> int:
        """The state after one more character of text."""
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self.depth)
                self.depth.append(self.depth[state] + 1)
                self.longest_stop.append("")
                self._next.append({})
                self._shorter.append(0)
            state = self._next[state][character]
        self.longest_stop[state] = stop

    def _link(self) -> None:
        """Fill ``_shorter``, and ``longest_stop`` of states that are no stop sequence, by rising depth."""
        level = list(self._next[0].values())
        while level:
            for state in level:
                self.longest_stop[state] = self.longest_stop[state] or self.longest_stop[self._shorter[state]]
                for character, deeper in self._next[state].items():
                    self._shorter[deeper] = self.step(self._shorter[state], character)
            level = [deeper for state in level for deeper in self._next[state].values()]
