"""Calls as parts of an answer that each begin with a name, that of a tool or ``all``."""

import string

from runner.chat.families.syntax.arguments import read_arguments, read_end
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_TO_USER = "all"


class RecipientCalls:
    """Calls as ``NAME``, a line break and arguments. The prompt ends with the first name's marker."""

    begins = (">>>",)
    bare = string.ascii_letters + "_"
    markers = begins

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        while True:
            name = yield from reader.name()
            yield from reader.expect("\n")
            if name == _TO_USER:
                reader.begin_trying()  # The name is no part of the text that follows.
                raise NotACall
            if (yield from reader.space()) != "{":
                raise NotACall
            reader.start_call(name)
            is_whole = yield from read_arguments(reader)
            yield from read_end(reader, "", is_whole=is_whole)
            if not (yield from reader.marker(*self.begins)):
                return
            reader.begin_trying(*self.begins)
