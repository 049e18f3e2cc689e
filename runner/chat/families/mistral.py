"""Mistral, Mixtral, Ministral, Codestral, Devstral, Magistral: all versions of the tokenizer."""

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.syntax.reader import NotACall, Reader, Reading
from runner.chat.families.tools import ToolUse

_CALLS, _CALL_ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_LIST = JsonCalls(begins=(_CALLS,), is_list=True)


class MistralCalls(NamedCalls, frozen=True):
    """Calls as a name and arguments, from version 11 of the tokenizer on; earlier as a list."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (_CALLS, _CALL_ID, _ARGUMENTS)

    def read(self, reader: Reader, tools: ToolUse, begin: str) -> Reading[None]:
        if (yield from reader.space()) in ("[", "{"):
            yield from _LIST.read(reader, tools, begin)
        else:
            yield from super().read(reader, tools, begin)

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        name = yield from reader.name()
        id_ = ""
        if (yield from reader.marker(_CALL_ID)):
            id_ = yield from reader.name()
        if not (yield from reader.marker(_ARGUMENTS)) and (yield from reader.space()) != "{":
            raise NotACall
        return name, id_


_THINKING = Span("[THINK]", "[/THINK]")
MISTRAL = Family("mistral", MistralCalls(_CALLS, _ARGUMENTS), _THINKING)
MISTRAL_LIST = Family("mistral-list", _LIST)
"""Versions 2 to 7 of the tokenizer."""
