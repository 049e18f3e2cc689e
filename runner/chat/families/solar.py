"""Solar Open: an answer of parts, each with a marker that tells its kind."""

from runner.chat.families.family import Family, Span
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.syntax.reader import NotACall, Reader, Reading

_NAME, _PART = "<|tool_call:name|>", "<|begin|>assistant"

_GUIDED_ID = "call"
"""Of all calls in guided answers."""


class IdentifiedCalls(NamedCalls, frozen=True):
    """An id stands before the name."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, _NAME)

    def _header(self, reader: Reader) -> Reading[tuple[str, str]]:
        id_ = yield from reader.name()
        if not (yield from reader.marker(_NAME)):
            raise NotACall
        name, _ = yield from super()._header(reader)
        return name, "" if id_ == _GUIDED_ID else id_


SOLAR = Family(
    name="solar",
    calls=IdentifiedCalls(
        begin="<|tool_call:begin|>",
        separator="<|tool_call:args|>",
        end="<|tool_call:end|>",
        before_name=f"<|tool_call:begin|>{_GUIDED_ID}{_NAME}",
        section_begin="<|tool_calls|>",
        section_end="<|calls|>",
        section_variants=((f"{_PART}<|tool_calls|>", "<|calls|>"),),
    ),
    reasoning=Span("<|think|>", "<|end|>"),
    wrappers=(Span("<|content|>", "<|end|>"), Span(f"{_PART}<|content|>", "<|end|>")),
)
