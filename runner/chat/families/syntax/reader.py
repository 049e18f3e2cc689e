"""Reader of an answer's text while it arrives: the syntaxes of all families use it.

A syntax is a generator: it yields whenever it needs more text than there is. All that it decides depends on
the text alone, never on how the text was split. Text is read once: what may be part of a marker is held back.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

from runner.chat.families.markers import CUT, Markers, Stops, is_special
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.chat.families.syntax.value_scan import ESCAPED, Scan, json_stops

T = TypeVar("T")
Reading = Generator[None, None, T]
Emit = Callable[[str], None]
Copy = Callable[[str], "Part | None"]
"""Function for the part that a text is; None if that depends on what is around it."""
Ends = Mapping[str, Callable[[], Reading[bool]]]
"""Markers, and what reads on after each to tell whether a text ends before it."""
_Kind = type[Content] | type[Reasoning] | type[CallArguments]

_SPACE = " \t\r\n"
_SPACES = re.compile(f"[{_SPACE}]*")
_NAME = re.compile(r"[\w.:/\-]+")
_MAX_NAME = 512


class NotACall(Exception):
    """Error: what seemed to begin a call is text."""


class Reader:
    """Text that was not read yet, and the parts that were."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.text = ""
        self.at = 0
        self.is_ended = False
        self.num_sections = 0
        """Number of calls and changes between reasoning and content."""
        self.search: Callable[[str], object] | None = None
        """Search, while text is read, for what ends the reading, or may."""
        self.sink: Emit = self.arguments
        """Function that takes text in which ``search`` finds nothing."""
        self.copied: Copy | None = None
        """Function that makes such text a part, if that is all there is to do: faster than ``sink``."""
        self.parts: list[Part] = []
        self._kind: _Kind | None = None
        self._pieces: list[str] = []
        self._tried: list[str] | None = None

    # Parts.

    def emit(self, kind: _Kind, text: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._pieces.append(text)

    def arguments(self, text: str) -> None:
        if text:
            self.emit(CallArguments, text)

    def start_call(self, name: str, id_: str = "") -> None:
        """Start a call. Raises NotACall without a name."""
        if not name:
            raise NotACall
        self._tried = None
        self.num_sections += 1
        self._flush()
        self.parts.append(CallStart(name, id_))

    def take_parts(self) -> list[Part]:
        self._flush()
        parts, self.parts = self.parts, []
        return parts

    def _flush(self) -> None:
        if self._kind is not None:
            if text := "".join(self._pieces):
                self.parts.append(self._kind(text))
            self._kind = None
            self._pieces = []

    # Trying.

    def begin_trying(self, begin: str = "") -> None:
        """Keep what is read from now on, and ``begin``, until a call starts."""
        self._tried = [begin]

    @property
    def tries_on_line(self) -> bool:
        """True if what is tried begins on a line of its own."""
        return self._tried is not None and self._tried[0].startswith("\n")

    def end_trying(self) -> str:
        """Return what was read, as text."""
        tried, self._tried = self._tried or [], None
        return self.markers.plain("".join(tried))

    # Text.

    def take(self, end: int) -> str:
        """Read up to the index ``end``."""
        taken = self.text[self.at : end]
        if self._tried is not None:
            self._tried.append(taken)
        self.at = end
        return taken

    def peek(self) -> Reading[str]:
        """Return the next character; empty at the end of the answer."""
        while self.at == len(self.text) and not self.is_ended:
            yield
        return self.text[self.at : self.at + 1]

    def space(self) -> Reading[str]:
        """Read whitespace. Return the next character; empty at the end of the answer."""
        while (next_ := (yield from self.peek())) and next_ in _SPACE:
            match = _SPACES.match(self.text, self.at)
            assert match is not None
            self.take(match.end())
        return next_

    def marker(self, *markers: str) -> Reading[str]:
        """Read one of these markers, if one is next, and return it, else an empty text."""
        for marker in markers:
            written = self.markers.written(marker)
            while True:
                part = self.text[self.at : self.at + len(written)]
                if written and part == written:
                    self.take(self.at + len(written))
                    return marker
                if self.at + len(part) == len(self.text):
                    part = part.removesuffix(CUT)
                if self.is_ended or not written.startswith(part) or not written:
                    break
                yield
        return ""

    def expect(self, marker: str) -> Reading[None]:
        """Read a marker. Raises NotACall if it is not next."""
        if not (yield from self.marker(marker)):
            raise NotACall

    def is_cut_off(self, *markers: str) -> bool:
        """Return True if, where no marker was read, the answer ends before one of ``markers`` could come."""
        written = tuple(self.markers.written(marker) for marker in markers if marker)
        return self.is_ended and not self.text.startswith(written, self.at)

    def name(self) -> Reading[str]:
        """Read the name of a function. Raises NotACall without one, or if it is too long or cut off."""
        yield from self.space()
        pieces: list[str] = []
        length = 0
        while True:
            match = _NAME.match(self.text, self.at)
            piece = self.take(match.end()) if match is not None else ""
            pieces.append(piece)
            length += len(piece)
            if self.at < len(self.text) or self.is_ended or length > _MAX_NAME:
                break
            yield
        if not 0 < length <= _MAX_NAME or self.at == len(self.text):
            raise NotACall
        return "".join(pieces)

    def until(self, stops: Stops, emit: Emit, *, keeps_rest: bool = True) -> Reading[str]:
        """Read and emit text before the first of ``stops``; read that, too, and return it.

        Return an empty text at the end of the answer. ``keeps_rest``: what may have been the beginning of a
        stop is text then. While ``copied`` is set, text may be made parts without ``emit``.
        """
        while True:
            match = stops.search(self.text, self.at)
            end = len(self.text) if match is None else match.start()
            if end > self.at:
                emit(self.take(end))
            if match is not None and match[1] is not None:
                self.copied = None
                return self.take(match.end())
            if self.is_ended:
                if (rest := self.markers.plain(self.take(len(self.text)))) and keeps_rest:
                    emit(rest)
                return ""
            if end == len(self.text) and self._tried is None:
                self.search, self.sink = stops.search_first, emit
            yield
            self.search = None

    def up_to(self, marker: str, emit: Emit, others: Ends | None = None) -> Reading[str]:
        """Read and emit text before ``marker``, which is read, too. Return what ends the text.

        That is the marker, or one of ``others``, which is not read: the marker is missing. It is empty if the
        text is cut off. ``others`` tell of a marker, once it was read, whether the text ends before it, or
        before the line break before it. If not, it is part of the text. So are further markers, but not
        special tokens, which are not read.
        """
        ends = {self.markers.written(other): end for other, end in (others or {}).items()}
        on_lines = {f"\n{other}": end for other, end in ends.items() if other}
        written = self.markers.written(marker)
        stops = self.markers.stops(marker, *(others or ()), *on_lines)
        ends |= on_lines
        while (found := (yield from self.until(stops, emit, keeps_rest=False))) and found != written:
            if found in ends:
                self.begin_trying(found)
                if (yield from ends[found]()):
                    self._unread()
                    return found.removeprefix("\n")
                text = self.end_trying()
                if self.is_ended and self.at == len(self.text):
                    return ""
                emit(text)
            elif is_special(found):
                self.at -= len(found)
                return ""
            else:
                emit(self.markers.plain(found))
        return marker if found else ""

    def _unread(self) -> None:
        """Go back to where trying began."""
        tried, self._tried = "".join(self._tried or ()), None
        if len(tried) <= self.at:
            self.at -= len(tried)
        else:  # It arrived in several pieces.
            self.text, self.at = tried + self.text[self.at :], 0

    # JSON.

    def json_string(self) -> Reading[str]:
        """Read a string of JSON and return its value. Raises NotACall if there is none, or it has no end."""
        pieces: list[str] = []
        if (yield from self.peek()) != '"' or not (yield from self.json(pieces.append)):
            raise NotACall
        try:
            text = str(json.loads("".join(pieces), strict=False))
        except ValueError as exc:
            raise NotACall from exc
        return text.encode(errors="replace").decode()  # Escapes can make halves of characters.

    def json(self, emit: Emit, *ends: str) -> Reading[bool]:
        """Read a value of JSON and emit its text. False if a marker of ``ends`` ends it, which is not read.

        Brackets and strings decide where the value ends. Nothing else is checked. A marker in a string is
        part of it, unless it is a special token. Control characters in strings are escaped.
        """
        first = yield from self.peek()
        if first not in ('"', "{", "["):
            return (yield from self._scalar(emit, ends))
        return (yield from self.scan(Scan(json_stops(self.markers, ends)), emit)) == ""

    def scan(self, scan: Scan, emit: Emit) -> Reading[str | None]:
        """Read and emit a value. Return what ends it, which is not read; None at the end of the answer."""
        scanned = self.at
        while True:
            scanned, found = scan.scan(self.text, scanned)
            emit(
                self.markers.plain(self.take(len(self.text) if found is None and self.is_ended else scanned))
            )
            if found is None:
                if self.is_ended:
                    return None
                if scanned == len(self.text) and self._tried is None:
                    self.search, self.sink = scan.search, emit
                    self.copied = CallArguments if emit == self.arguments else None
                yield
                self.search = self.copied = None
            elif scan.is_string and not is_special(found):
                text = self.markers.plain(self.take(scanned + len(found)))
                emit("\\" * scan.follows_escape + ESCAPED[text] if text in ESCAPED else text)
            else:
                return found
            scanned = self.at

    def _scalar(self, emit: Emit, ends: tuple[str, ...]) -> Reading[bool]:
        """Read a number or a name, which ends where none can go on."""
        while (next_ := (yield from self.peek())) and (next_.isalnum() or next_ in "+-._"):
            emit(self.take(self.at + 1))
        return bool(next_)
