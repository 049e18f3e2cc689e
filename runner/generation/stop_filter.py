"""Stop sequences in a stream of text: everything before the first one comes out, nothing of any one does."""

from __future__ import annotations

import re
from collections.abc import Iterable


class StopFilter:
    """Cuts one stream of text where the first of its stop sequences begins.

    What ``push`` and ``finish`` return, joined, is the whole text up to the smallest index at which
    any of ``stops`` occurs, or all of it; however the text is split over the pushes. Text is kept
    back only while it could still turn out to be a stop sequence, so always less than the longest.

    ``matched`` is None until the cut is certain, which may be a little after a stop sequence is
    complete: one that began earlier may still be under way. It is set within the push that settles
    it (or in ``finish``), and from then on no text comes any more, so the stream may be cancelled.
    It holds the sequence found at the cut, the shortest if several begin there. Comparison is by
    code points. Empty stop sequences are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.matched: str | None = None
        stops = [stop for stop in stops if stop]
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""
        self._candidate: tuple[int, str] | None = None
        """A complete stop sequence and where it starts in ``_held``; one that starts earlier may follow."""

    def push(self, text: str) -> str:
        """The text that may be shown now; of the push that settles a match, what stands before it."""
        if self.matched is not None:
            return ""
        if self._automaton is None:
            return text
        unseen = len(self._held)
        text = self._held + text
        return self._cut(text) if self._settles(text, unseen) else self._keep_back(text)

    def finish(self) -> str:
        """What was kept back and may be shown, now that no more text comes. Nothing is pushed afterwards."""
        if self._candidate is not None:
            return self._cut(self._held)
        rest, self._held = self._held, ""
        return rest

    def _settles(self, text: str, at: int) -> bool:
        """Follow ``text`` from index ``at``; True, and no further, once nothing can precede the candidate."""
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

    def _keep_back(self, text: str) -> str:
        """Give out ``text`` up to where a stop sequence may have begun."""
        assert self._automaton is not None
        shown = len(text) - self._automaton.depth[self._state]
        self._held = text[shown:]
        if self._candidate is not None:
            start, stop = self._candidate
            self._candidate = (start - shown, stop)
        return text[:shown]

    def _cut(self, text: str) -> str:
        """Give out ``text`` up to the candidate, which is the match."""
        assert self._candidate is not None
        start, self.matched = self._candidate
        self._held = ""
        self._candidate = None
        return text[:start]


class _Automaton:
    """Aho-Corasick: which beginnings of stop sequences does the text end with, in amortized constant time.

    A state is a string that some stop sequence begins with: the longest such that the text ends with.
    State 0 is the empty string. Per state: ``depth``, its length; ``longest_stop``, the longest stop
    sequence it ends with, or "".
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.depth = [0]
        self.longest_stop = [""]
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        """Per state, the state of the longest proper suffix that is one."""
        for stop in stops:
            self._add(stop)
        self._link()
        self._first_character = re.compile(f"[{''.join(map(re.escape, self._next[0]))}]")

    def find_first_character(self, text: str, at: int) -> int:
        """The first index from ``at`` on where a stop sequence can begin; ``len(text)`` if there is none."""
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
        """Fill ``_shorter``, and ``longest_stop`` where it is not the state itself, shallow states first."""
        level = list(self._next[0].values())
        while level:
            for state in level:
                self.longest_stop[state] = self.longest_stop[state] or self.longest_stop[self._shorter[state]]
                for character, deeper in self._next[state].items():
                    self._shorter[deeper] = self.step(self._shorter[state], character)
            level = [deeper for state in level for deeper in self._next[state].values()]
