"""Scan for the end of a value of JSON or Python. Brackets and strings decide it, and nothing else."""

import json
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from runner.chat.families.markers import Markers, Stops

_NESTING = {"{": 1, "[": 1, "}": -1, "]": -1}
_PYTHON_NESTING = {**_NESTING, "(": 1, ")": -1}
_ESCAPE, _COMMA = "\\", ","
ESCAPED = {character: json.dumps(character)[1:-1] for character in map(chr, range(32))}
"""Control characters as a string of JSON has them."""
_MAX_REMEMBERED = 32
"""Limit of characters. Longer pieces of text are seldom the same."""


class ScanStops(msgspec.Struct, frozen=True, eq=False):
    outside: Stops
    in_strings: Mapping[str, Stops]
    """Stops in strings, by quotation mark."""
    nesting: Mapping[str, int]
    is_argument: bool = False
    """True if the value ends before a comma or bracket that is not its own, and not with its last bracket."""


@lru_cache(maxsize=128)
def json_stops(markers: Markers, ends: tuple[str, ...]) -> ScanStops:
    """Return the stops of JSON. ``ends``: markers that end a value, too."""
    in_strings = {'"': markers.stops('"', _ESCAPE, *ESCAPED)}
    return ScanStops(markers.stops('"', *_NESTING, *ends), in_strings, _NESTING)


@lru_cache(maxsize=128)
def python_stops(markers: Markers) -> ScanStops:
    """Return the stops of a call's argument in Python's syntax."""
    outside = markers.stops("'", '"', *_PYTHON_NESTING, _COMMA)
    in_strings = {quote: markers.stops(quote, _ESCAPE) for quote in "'\""}
    return ScanStops(outside, in_strings, _PYTHON_NESTING, is_argument=True)


class Scan:
    """Scan of one value, from its first character on."""

    def __init__(self, stops: ScanStops, depth: int = 0, place: str = "") -> None:
        self._stops = stops
        self._depth = depth
        self._place = place
        """Quotation mark of the string, with a backslash after one; empty outside."""
        self.follows_escape = False
        """True if what the last scan found is directly after a backslash that escapes it."""

    @property
    def is_string(self) -> bool:
        return bool(self._place)

    def scan(self, text: str, at: int) -> tuple[int, str | None]:
        """Go on from the index ``at``, and return where the scan stops, and why.

        It stops at the end of the value (empty text), at a marker or what ends an argument (its text), or
        where a marker may begin or the text ends (None).
        """
        stops = self._stops
        while True:
            quote = self._place[:1]
            escaped_at = at if len(self._place) > 1 else None
            if len(self._place) > 1 and at < len(text):
                self._place = quote
                at += text[at] in (quote, _ESCAPE)
            match = (stops.in_strings[quote] if quote else stops.outside).search(text, at)
            if match is None:
                return len(text), None
            found, at = match[1], match.end()
            if found == _ESCAPE:
                self._place = quote + found
            elif found in stops.in_strings:
                self._place = "" if quote else found
            elif found in stops.nesting or found == _COMMA:
                depth = self._depth + stops.nesting.get(found, 0)
                if stops.is_argument and (depth < 0 or (found == _COMMA and not depth)):
                    return match.start(), found
                self._depth = depth
            else:
                self.follows_escape = match.start() == escaped_at
                return match.start(), found
            if self._depth <= 0 and not self._place and not stops.is_argument:
                return at, ""

    def search(self, text: str) -> "Scan | None":
        """Continue with ``text``. Return None if all of it belongs to the value, else the scan."""
        after = _after if len(text) <= _MAX_REMEMBERED else _after.__wrapped__
        state = after(self._stops, text, self._depth, self._place)
        if state is None:
            return self
        self._depth, self._place = state
        return None


@lru_cache(maxsize=8192)
def _after(stops: ScanStops, text: str, depth: int, place: str) -> tuple[int, str] | None:
    """Return depth and place after ``text``; None if it has to be read. Most texts are single tokens."""
    scan = Scan(stops, depth, place)
    return (scan._depth, scan._place) if scan.scan(text, 0) == (len(text), None) else None
