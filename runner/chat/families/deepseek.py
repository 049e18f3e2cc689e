"""DeepSeek V3, R1, V3.1, V3.2, V4 and V4.1, and the models distilled from R1."""

import msgspec

from runner.chat.families.family import THINK, Family
from runner.chat.families.syntax.invoke_calls import InvokeCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.syntax.reader import NotACall, Reader, Reading

_FENCE, _FENCE_END = "```json", "```"
_KIND = "function"


class DeepSeekCalls(NamedCalls, frozen=True):
    """Calls of V3 and R1, with the word function before the separator, and the name after it."""

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        name, id_ = yield from super()._header(reader)
        next_ = yield from reader.space()
        if name == _KIND and next_ != "{":
            name = yield from reader.name()
            next_ = yield from reader.space()
        if next_ == _FENCE[0] and not (yield from reader.marker(_FENCE)):
            raise NotACall
        return name, id_


_CALLS = DeepSeekCalls(
    begin="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    end="<｜tool▁call▁end｜>",
    section_begin="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
)
_FENCED = msgspec.structs.replace(
    _CALLS,
    before_name=f"{_CALLS.begin}{_KIND}{_CALLS.separator}",
    before_arguments=f"\n{_FENCE}\n",
    after_arguments=f"\n{_FENCE_END}",
    between="\n",
)


def _dsml(name: str, section: str, *variants: str, prefix: str = "｜DSML｜") -> Family:
    """Make a family of DSML. ``variants``: what models write instead of ``section``."""
    names = tuple(f"{prefix}{each}" for each in variants)
    calls = InvokeCalls(f"{prefix}{section}", prefix, tells_types=True, section_variants=names)
    return Family(name, calls, THINK, ends_reasoning=calls.sections)


DEEPSEEK_V3 = Family("deepseek-v3", _FENCED, THINK)
DEEPSEEK_V31 = Family("deepseek-v3.1", _CALLS, THINK)
DEEPSEEK_V32 = _dsml("deepseek-v3.2", "function_calls")
DEEPSEEK_V4 = _dsml("deepseek-v4", "tool_calls", "toolcalls", "tool")
DEEPSEEK_V41 = _dsml("deepseek-v4.1", "calls", prefix="｜DSML｜ ")
