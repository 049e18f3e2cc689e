"""Stop sequences in a stream of text: the text before the first one is returned, no part of it is."""

from collections.abc import Iterable

from runner.generation.stop_sequences import StopSequences


class StopFilter:
    """A filter that cuts one stream of text where the first of its stop sequences begins.

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
        self._stops = StopSequences(stops)
        if self._stops:
            self._state = self._stops.start
        self._held = ""
        self._candidate: tuple[int, str] | None = None
        """Start of a complete stop sequence in ``_held``, and itself. An earlier one may still follow."""

    def push(self, text: str) -> str:
        """Return the text that is certain now; if this push decides a match, the text before it."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        unseen = len(self._held)
        text = self._held + text
        return self._cut(text) if self._decides(text, unseen) else self._hold_back(text)

    def finish(self) -> str:
        """Return the text that was held back, up to a match. Nothing is pushed afterwards."""
        if self._candidate is not None:
            return self._cut(self._held)
        rest, self._held = self._held, ""
        return rest

    def _decides(self, text: str, at: int) -> bool:
        """Follow ``text`` from index ``at``. Return True once no stop sequence can precede the candidate."""
        start = self._stops.start
        while at < len(text):
            if self._state is start:
                at = self._stops.find_first_character(text, at)
                if at == len(text):
                    return False
            self._state = state = self._state.step(text[at])
            at += 1
            complete = state.longest_stop
            if complete and (self._candidate is None or at - len(complete) < self._candidate[0]):
                self._candidate = (at - len(complete), complete)
            if self._candidate is not None and self._candidate[0] <= at - state.depth:
                return True
        return False

    def _hold_back(self, text: str) -> str:
        """Return ``text`` up to where a stop sequence may have begun, and hold back the rest."""
        shown = len(text) - self._state.depth
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
