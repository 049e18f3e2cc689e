"""Answers of several messages, each with a header that names its channel and its recipient (gpt-oss)."""

import re

from tokenizers import Tokenizer

from runner.chat.families.answer import AnswerReader
from runner.chat.families.family import AnswerForm, Family, Span
from runner.chat.families.parts import CallArguments, Content, Reasoning
from runner.chat.families.syntax.reader import Reader, Reading
from runner.chat.families.tools import ToolUse

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN)
_TO, _PREFIX = re.compile(r"\bto=([^\s<]+)"), "functions."
_IS_ANALYSIS = re.compile(rf"{re.escape(_CHANNEL)}\s*analysis\b")
_IS_COMMENTARY = re.compile(rf"{re.escape(_CHANNEL)}\s*commentary\b")
_UNMARKED = re.compile(
    rf"{re.escape(_CHANNEL)}\s*(analysis|final)\b(?:\s*{re.escape(_CONSTRAIN)}\s*json\b)?\s*(.+)", re.DOTALL
)
"""Header with the text of its message, whose marker is missing."""
_OWN_TOOLS = ("assistant", "browser", "python", "container")
"""Recipients that models were taught without tools of clients."""


class HarmonyCalls:
    """Calls as messages to ``functions.NAME``, whose text is the arguments. ``HarmonyAnswer`` reads them."""

    begins = ()
    bare = ""
    markers = _MARKERS

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        raise NotImplementedError


class HarmonyAnswer(AnswerReader):
    """Reader of answers. The prompt ends with the beginning of a header, or with all of it."""

    def __init__(self, form: AnswerForm, tokenizer: Tokenizer) -> None:
        super().__init__(form, tokenizer, _MARKERS)
        self._stops = self.markers.stops(*_MARKERS)
        self._texts = {self.markers.written(marker): marker for marker in _MARKERS}

    def _read(self) -> Reading[None]:
        reader = self._reader
        found = _MESSAGE if self.is_reasoning else _START
        header = [_CHANNEL, "analysis"] if self.is_reasoning else []
        if found == _START and (yield from reader.space()) and not (yield from self._is_header()):
            found = _MESSAGE  # Text without a header.
        while found:
            if found == _MESSAGE:
                found = yield from self._message("".join(header))
                header = []
            else:
                header = header if found in (_CHANNEL, _CONSTRAIN) else []
                header.append(found)
                found = self._texts.get((yield from reader.until(self._stops, header.append)), "")
                if found not in (_CHANNEL, _CONSTRAIN, _MESSAGE):
                    self._unmarked("".join(header))

    def _is_header(self) -> Reading[bool]:
        """Return True if the answer begins with a marker or a recipient."""
        reader = self._reader
        begins = (*self._texts, "to=")
        while not reader.is_ended and any(begin.startswith(reader.text[reader.at :]) for begin in begins):
            yield
        return reader.text.startswith(begins, reader.at)

    def _unmarked(self, header: str) -> None:
        """Emit the text after a header, if it has any in place of the next marker."""
        match = _UNMARKED.match(header[max(header.rfind(_CHANNEL), 0) :])
        if match is not None and _TO.search(header) is None:
            self._reader.num_sections += 1
            self._reader.emit(Reasoning if match[1] == "analysis" else Content, match[2])

    def _is_call(self, name: str) -> bool:
        """Return True if a message to ``name`` is a call: the model's own tools only where offered."""
        if self._tools is None or name.startswith(_PREFIX):
            return self._tools is not None
        return any(tool.name == name for tool in self._tools.tools) or not _is_own_tool(name)

    def _message(self, header: str) -> Reading[str]:
        """Read the text of a message and the marker after it, which is returned."""
        reader = self._reader
        to = _TO.search(header)
        is_call = to is not None and self._is_call(to[1])
        channel = header[max(header.rfind(_CHANNEL), 0) :]
        self.is_reasoning = not is_call and _IS_ANALYSIS.match(channel) is not None
        kind = Reasoning if self.is_reasoning else Content
        reader.num_sections += 1
        if to is not None and is_call:
            reader.start_call(to[1].removeprefix(_PREFIX))
            if (yield from reader.peek()) in self._texts:
                reader.arguments("{}")
            reader.copied = CallArguments
            found = yield from reader.until(self._stops, reader.arguments)
        elif to is not None and _is_own_tool(to[1]) and _IS_COMMENTARY.match(channel) is not None:
            found = yield from reader.until(self._stops, lambda _: None)  # Only its own tool reads it.
        else:
            reader.copied = kind
            found = yield from reader.until(self._stops, lambda text: reader.emit(kind, text))
        self.is_reasoning = False
        return self._texts.get(found, "")


def _is_own_tool(name: str) -> bool:
    return name.partition(".")[0] in _OWN_TOOLS


GPT_OSS = Family(
    name="gpt-oss",
    calls=HarmonyCalls(),
    reasoning=Span(f"{_CHANNEL}analysis{_MESSAGE}", _END),
    has_channels=True,
)
