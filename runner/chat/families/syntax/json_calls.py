"""Calls as objects of JSON: a name and arguments, one object or several, with or without markers around."""

import msgspec

from runner.chat.families.syntax.arguments import read_arguments, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_WRAPPED = "function"
_OTHER_KEYS = ("type", "index")


class JsonCalls(msgspec.Struct, frozen=True):
    begins: tuple[str, ...] = ()
    end: str = ""
    """Marker after one object, or after a list of them."""
    bare: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    """Key that the family's template tells the model. ``arguments`` and ``parameters`` are both read."""
    id_key: str = "id"
    separator: str = ","
    """Text between objects without a list."""
    is_list: bool = False
    """True if the template tells the model to write a list. One object is read as well."""
    has_other_keys: bool = False
    """True if an object between markers may have any further keys."""
    no_calls: tuple[str, ...] = ()
    """Tools of the template's own, which the model names to call none. They are left out."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.begins, self.end)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        next_ = yield from reader.space()
        is_list = next_ == "["
        if is_list:
            reader.take(reader.at + 1)
        reading = _Objects(self, reader, tools, is_marked=bool(begin))
        is_whole = True
        while is_whole and (yield from reader.space()) == "{":
            is_whole = yield from reading.object()
            if is_whole and (yield from reader.space()) in (self.separator, ","):
                reader.take(reader.at + 1)
        if is_list and (yield from reader.space()) == "]":
            reader.take(reader.at + 1)
        if not reading.num_calls:
            yield from reader.space()
            if is_list and begin and (yield from reader.marker(self.end)):
                return  # There was no call.
            raise NotACall
        yield from read_end(reader, self.end, is_whole=is_whole)


class _Objects:
    """Reader of objects, one after the other."""

    def __init__(self, syntax: JsonCalls, reader: Reader, tools: ToolUse, *, is_marked: bool) -> None:
        self._syntax = syntax
        self._reader = reader
        self._is_marked = is_marked
        self._names = {tool.name for tool in tools.tools}
        self.num_calls = 0
        self._begin()

    def _begin(self) -> None:
        self._name = ""
        self._id = ""
        self._early: list[str] = []
        """Arguments that came before the name."""
        self._has_arguments = False
        self._has_started = False

    def object(self) -> Reading[bool]:
        """Read an object. False if it was cut off. Raises NotACall only before a call starts."""
        if self.num_calls:
            self._reader.begin_trying()
        self._begin()
        try:
            is_whole = yield from self._members()
        except NotACall:
            if not self._has_started:
                raise
            return False
        if not self._has_started:
            if not self._name or (not self._is_marked and self._name not in self._names):
                raise NotACall
            self._start()
        if is_whole and not self._has_arguments and not self._is_left_out:
            self._reader.arguments("{}")
        return is_whole

    @property
    def _is_left_out(self) -> bool:
        return self._name in self._syntax.no_calls and self._name not in self._names

    def _start(self) -> None:
        if not self._has_started and self._name:
            self._has_started = True
            self.num_calls += 1
            if self._is_left_out:
                self._reader.end_trying()
                return
            self._reader.start_call(self._name, self._id)
            for piece in self._early:
                self._reader.arguments(piece)

    def _members(self) -> Reading[bool]:
        """Read an object. False if it was cut off."""
        reader = self._reader
        reader.take(reader.at + 1)
        while True:
            next_ = yield from reader.space()
            if next_ == "}":
                reader.take(reader.at + 1)
                return True
            if next_ == ",":
                reader.take(reader.at + 1)
                continue
            key = yield from reader.json_string()
            if (yield from reader.space()) != ":":
                raise NotACall
            reader.take(reader.at + 1)
            next_ = yield from reader.space()
            if not (yield from self._member(key, next_)):
                return False

    def _member(self, key: str, next_: str) -> Reading[bool]:
        reader, syntax = self._reader, self._syntax
        if (key == syntax.name_key or (key == _WRAPPED and next_ == '"')) and not self._name:
            self._name = yield from reader.json_string()
            if self._is_marked or self._has_arguments:
                self._start()
        elif key in (syntax.arguments_key, "arguments", "parameters") and not self._has_arguments:
            self._has_arguments = True
            self._start()
            if self._has_started and not self._is_left_out:
                return (yield from read_arguments(reader, syntax.end))
            return (yield from reader.json(self._early.append, syntax.end))
        elif key == syntax.id_key and next_ == '"' and not self._has_started:
            self._id = yield from reader.json_string()
        elif key == _WRAPPED and next_ == "{":
            return (yield from self._members())
        elif key in (syntax.id_key, *_OTHER_KEYS) or self._has_started or syntax.has_other_keys:
            return (yield from reader.json(lambda _: None, syntax.end))
        else:
            raise NotACall
        return True
