"""Llama 4: a list of calls in Python's syntax, with keyword arguments."""

import ast
import json
import warnings

from runner.chat.families.family import Family
from runner.chat.families.markers import is_special
from runner.chat.families.syntax.arguments import is_json, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_QUOTES = "\"'"
_MAX_NESTED = 1 << 15
"""Characters of a literal that is not a string: parsing it takes up to 50 ms."""
_NESTING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class PythonCalls:
    begins = ("<|python_start|>",)
    bare = "["
    end = "<|python_end|>"
    markers = (*begins, end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        yield from reader.space()
        if not (yield from reader.marker("[")):
            raise NotACall
        is_whole = True
        while is_whole:
            is_whole = yield from self.call(reader, (yield from reader.name()))
            yield from reader.space()
            if not is_whole or not (yield from reader.marker(",")):
                break
            reader.begin_trying(",")
        yield from read_end(reader, self.end, is_whole=is_whole)

    def call(self, reader: Reader, name: str) -> Reading[bool]:
        """Read the arguments after ``name``. False if they were cut off. Raises NotACall."""
        if not (yield from reader.marker("(")):
            raise NotACall
        separator = "{"
        next_ = yield from reader.space()
        while next_ != ")":
            key = yield from reader.name()
            yield from reader.space()
            if not (yield from reader.marker("=")):
                raise NotACall
            if separator == "{":
                reader.start_call(name)
            reader.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            value = yield from self._value(reader)
            if value is None:
                return False
            reader.arguments(value)
            if (yield from reader.marker(",")):
                next_ = yield from reader.space()
            else:
                next_ = yield from reader.peek()
        reader.take(reader.at + 1)
        if separator == "{":
            reader.start_call(name)
        reader.arguments("{}" if separator == "{" else "}")
        return True

    def _value(self, reader: Reader) -> Reading[str | None]:
        """Read a literal and return it as JSON; None if it was cut off."""
        pieces: list[str] = []
        outside = stops = reader.markers.stops(*_QUOTES, *_NESTING, ",")
        quote = ""
        depth = 0
        while found := (yield from reader.until(stops, pieces.append)):
            if is_special(found) or (not quote and not depth and found in ",)"):
                reader.at -= len(found)
                return None if is_special(found) else _json("".join(pieces).strip())
            pieces.append(reader.markers.plain(found))
            if found == "\\":
                if (yield from reader.peek()) in (quote, found):
                    pieces.append(reader.take(reader.at + 1))
            elif found in _QUOTES:
                quote = "" if quote else found
                stops = reader.markers.stops(quote, "\\") if quote else outside
            elif not quote:
                depth += _NESTING.get(found, 0)
        return None


def _json(literal: str) -> str:
    """A literal of JSON (as guided answers have it) or of Python, as JSON; any other text as a string."""
    if is_json(literal):
        return literal
    if len(literal) <= _MAX_NESTED or literal[0] in _QUOTES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of escapes that Python does not know.
                return json.dumps(ast.literal_eval(literal), ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            pass
    return json.dumps(literal, ensure_ascii=False)


LLAMA4 = Family(name="llama4", calls=PythonCalls())
