"""Kimi K2."""

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.syntax.reader import Reader, Reading

_PREFIX = "functions."


class KimiCalls(NamedCalls, frozen=True):
    """Calls with an id before the separator, which has the name: ``functions.NAME:NUMBER``."""

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        id_, _ = yield from super()._header(reader)
        name, _, number = id_.rpartition(":")
        if not name or not number.isdecimal():
            name = id_
        return name.removeprefix(_PREFIX), id_


KIMI_K2 = Family(
    name="kimi-k2",
    calls=KimiCalls(
        begin="<|tool_call_begin|>",
        separator="<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        before_name=f"<|tool_call_begin|>{_PREFIX}",
        is_numbered=True,
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        section_variants=(("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),),
    ),
    reasoning=Span("<think>", "</think>"),
)
