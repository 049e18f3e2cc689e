"""How far a value of JSON goes. Brackets and strings decide; nothing else is checked."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from runner.chat.families.markers import Markers, Stops

_CLOSING = {"{": 1, "[": 1, "}": -1, "]": -1}
_OUTSIDE, _STRING, _ESCAPE = 0, 1, 2
_ESCAPED = ('"', "\\")
_MAX_REMEMBERED = 32
"""Characters. Longer pieces of text are seldom the same."""


class JsonStops(msgspec.Struct, frozen=True, eq=False):
    outside: Stops
    in_strings: Stops


@lru_cache(maxsize=128)
def json_stops(markers: Markers, ends: tuple[str, ...]) -> JsonStops:
    """``ends``: markers that end a value, too."""
    return JsonStops(markers.stops('"', *_CLOSING, *ends), markers.stops(*_ESCAPED))


class JsonScan:
    """Of one value, from its first character on."""

    def __init__(self, stops: JsonStops, depth: int = 0, place: int = _OUTSIDE) -> None:
        self._stops = stops
        self._depth = depth
        self._place = place

    @property
    def is_string(self) -> bool:
        return self._place != _OUTSIDE

    def scan(self, text: str, at: int) -> tuple[int, str | None]:
        """Go on from the index ``at``: to the end of the value, and an empty text; to a marker, and this;
        or to where a marker may begin or the text ends, and None.
        """
        while True:
            if self._place == _ESCAPE and at < len(text):
                self._place = _STRING
                at += text[at] in _ESCAPED
            stops = self._stops.in_strings if self.is_string else self._stops.outside
            match = stops.search(text, at)
            if match is None:
                return len(text), None
            found, at = match[1], match.end()
            if found == "\\":
                self._place = _ESCAPE
            elif found == '"':
                self._place = _OUTSIDE if self.is_string else _STRING
            elif found in _CLOSING:
                self._depth += _CLOSING[found]
            else:
                return match.start(), found
            if self._depth <= 0 and not self.is_string:
                return at, ""

    def search(self, text: str) -> JsonScan | None:
        """None if ``text``, which goes on where the last one ended, is part of the value as it stands."""
        after = _after if len(text) <= _MAX_REMEMBERED else _after.__wrapped__
        state = after(self._stops, text, self._depth, self._place)
        if state is None:
            return self
        self._depth, self._place = state
        return None


@lru_cache(maxsize=8192)
def _after(stops: JsonStops, text: str, depth: int, place: int) -> tuple[int, int] | None:
    """Depth and place after ``text``; None if it has to be read. Most texts are those of single tokens."""
    scan = JsonScan(stops, depth, place)
    return (scan._depth, scan._place) if scan.scan(text, 0) == (len(text), None) else None
