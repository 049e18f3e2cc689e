"""Answers with markers around calls and reasoning, which is the form of most families."""

import re

from tokenizers import Tokenizer

from runner.chat.families.answer import AnswerReader
from runner.chat.families.family import NOTHING, AnswerForm
from runner.chat.families.harmony import HarmonyAnswer
from runner.chat.families.markers import is_token
from runner.chat.families.parts import Content, Reasoning
from runner.chat.families.syntax.reader import NotACall, Reading

_LINE_BREAK = re.compile(r"[\r\n]")


class MarkedAnswer(AnswerReader):
    def __init__(self, form: AnswerForm, tokenizer: Tokenizer) -> None:
        family = form.family
        self._calls = None if form.tools is None else family.calls
        thinking = family.reasoning or NOTHING
        wraps, end_wraps = ([each.begin for each in family.wrappers], [each.end for each in family.wrappers])
        begins, of_calls = ((), ()) if self._calls is None else (self._calls.begins, self._calls.markers)
        super().__init__(form, tokenizer, (*of_calls, thinking.begin, thinking.end, *wraps, *end_wraps))
        written, stops = self.markers.written, self.markers.stops
        self._call_begins = {*map(written, begins)}
        self._sure_begins = {*map(written, family.ends_reasoning)}
        """Markers that are hardly text, though they are no tokens."""
        self._think, self._end_think = written(thinking.begin), written(thinking.end)
        self._wraps, self._end_wraps = wraps, {*map(written, end_wraps)}
        has_bare = form.tools is not None and not form.tools.is_enforced
        self._bare_anywhere = family.bare_anywhere if has_bare else ""
        self._content_stops = stops(*begins, *self._bare_anywhere)
        self._wrapped_stops = stops(*begins, *end_wraps)
        ends = family.ends_reasoning if begins else ()
        self._reasoning_stops = stops(thinking.end, *ends)
        self._may_text_end_reasoning = any(not is_token(written(each)) for each in (thinking.end, *ends))
        self._is_trying = False
        self._is_always_wrapped = self._is_wrapped = "" in wraps
        self._blank: list[str] | None = []
        """Whitespace of a section that has nothing else yet."""
        self._space: list[str] = []
        """Whitespace at the end of the reasoning so far: left out if nothing follows."""
        self._lines: list[str] = []
        """Line breaks at the end of the content so far: no part of it if calls follow."""
        self._has_end = False
        """True if a wrapper ended: line breaks around its end are its form if nothing follows."""
        self._has_content = False
        self._before_calls: list[str] = []
        """Line breaks before calls: part of the content only if it goes on."""
        self._is_markup_known = False
        """True if calls or reasoning were read: a further end marker is then no text."""
        self._drops_blank = False
        """True if whitespace at the beginning of the content belongs to the form of the family."""

    @property
    def needs_single_tokens(self) -> bool:  # type: ignore[override]
        if self.is_reasoning:
            return self._is_trying or self._may_text_end_reasoning
        return self._blank is not None and bool(self._think) and not is_token(self._think)

    def _read(self) -> Reading[None]:
        while (yield from self._read_reasoning() if self.is_reasoning else self._read_content()):
            pass
        if self._blank and not (self._drops_blank or self._is_markup_known):
            self._reader.emit(Content, "".join(self._blank))
        if not self._has_end:
            self._end_lines()

    def _read_content(self) -> Reading[bool]:
        """Read content and what ends it. False at the end of the answer."""
        reader = self._reader
        if self._blank is not None and (yield from self._read_beginning()):
            return True
        stops = self._wrapped_stops if self._is_wrapped else self._content_stops
        found = yield from reader.until(stops, self._content)
        if found in self._call_begins:
            yield from self._try_calls(found)
        elif found and found in self._bare_anywhere:
            reader.at -= len(found)
            yield from self._try_calls("")
        elif found and found == self._think:
            self._begin_section(is_reasoning=True)
        elif found in self._end_wraps:
            self._is_wrapped, self._has_end = self._is_always_wrapped, True
        elif found == self._end_think and self._blank is not None:
            self._begin_section(is_reasoning=False)
        elif not self._is_markup_known:
            self._content(self.markers.plain(found))
        return bool(found)

    def _read_beginning(self) -> Reading[bool]:
        """Read calls and reasoning that can only stand before all content. False if it is something else."""
        reader = self._reader
        while (next_ := (yield from reader.peek())).isspace():
            self._content(reader.take(reader.at + 1))
        if self._calls is not None and next_ and next_ in self._calls.bare:
            return (yield from self._try_calls(""))
        if self._think and (yield from reader.marker(self._think)):
            self._begin_section(is_reasoning=True)
            return True
        if (yield from reader.marker(*self._wraps)):
            self._is_wrapped = self._drops_blank = True
        return False

    def _read_reasoning(self) -> Reading[bool]:
        """Read reasoning and what ends it. False at the end of the answer."""
        found = yield from self._reader.until(self._reasoning_stops, self._reasoning)
        if found in self._call_begins:
            yield from self._try_calls(found)
        elif found == self._end_think:
            self._begin_section(is_reasoning=False)
        elif found != self._think:
            self._reasoning(self.markers.plain(found))
        return bool(found)

    def _try_calls(self, begin: str) -> Reading[bool]:
        """Read calls. False if there are none: then it is text."""
        reader = self._reader
        assert self._calls is not None
        assert self._tools is not None
        self._is_trying = True
        num_sections = reader.num_sections
        reader.begin_trying(begin)
        try:
            yield from self._calls.read(reader, self._tools, begin)
            reader.end_trying()
            tried, is_markup = "", True
        except NotACall:
            tried, is_markup = reader.end_trying(), False
            is_sure = is_token(begin) or begin in self._sure_begins or self._tools.choice == "required"
            if reader.is_ended and is_sure:
                tried = ""  # It was cut off after the model had begun a call.
                reader.take(len(reader.text))
        self._is_trying = False
        has_calls = reader.num_sections > num_sections
        if has_calls:
            self._before_calls, self._lines = [*self._before_calls, *self._lines], []
        if has_calls or (is_markup and self.is_reasoning):
            self._begin_section(is_reasoning=False)
        if has_calls and self._has_content and not self._before_calls:
            self._drops_blank = False
        (self._reasoning if self.is_reasoning else self._content)(tried)
        return has_calls

    def _begin_section(self, *, is_reasoning: bool) -> None:
        self._end_lines()
        self._is_markup_known = self._drops_blank = True
        self.is_reasoning = is_reasoning
        self._blank = []
        self._space = []
        self._reader.num_sections += 1

    def _content(self, text: str) -> None:
        if self._blank is not None:
            self._blank.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._blank)
            if self._drops_blank:
                text = text.lstrip()
            text = "".join((*self._before_calls, text))
            self._blank, self._before_calls, self._has_content = None, [], True
        if self._calls is None:
            self._reader.copied = Content
            self._reader.emit(Content, text)
        elif text:
            stripped = text.rstrip()
            if stripped:
                self._end_lines()
            breaks = _LINE_BREAK.search(text, len(stripped))
            length = 0 if self._lines else breaks.start() if breaks else len(text)
            if length:
                self._reader.emit(Content, text[:length])
            if length < len(text):
                self._lines.append(text[length:])
            self._reader.copied = None if self._lines else _content_part

    def _end_lines(self) -> None:
        """Emit line breaks as content, as no calls follow."""
        if self._lines:
            self._reader.emit(Content, "".join(self._lines))
            self._lines = []

    def _reasoning(self, text: str) -> None:
        """Emit reasoning without whitespace around it."""
        if self._blank is not None:
            text = text.lstrip()
            if not text:
                return
            self._blank = None
        if stripped := text.rstrip():
            self._reader.emit(Reasoning, "".join((*self._space, stripped)))
            self._space = []
        if len(stripped) < len(text):
            self._space.append(text[len(stripped) :])
        self._reader.copied = None if self._space else _reasoning_part


def _content_part(text: str) -> Content | None:
    return None if text[-1].isspace() and _LINE_BREAK.search(text) else Content(text)


def _reasoning_part(text: str) -> Reasoning | None:
    return None if text[-1].isspace() else Reasoning(text)


def answer_reader(form: AnswerForm, tokenizer: Tokenizer) -> AnswerReader:
    return (HarmonyAnswer if form.family.has_channels else MarkedAnswer)(form, tokenizer)
