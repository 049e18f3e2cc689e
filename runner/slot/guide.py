"""The guide of a Triton request: what its output must follow."""

from __future__ import annotations

from errors.requests import InvalidTensor, UnsupportedArgument
from runner.engines.protocol.messages import GUIDE_TYPES, Guide, GuideType, Ready, Submit
from runner.slot.tensors import Row
from runner.slot.unsupported import NO_ENGINE_REMEDY

_GUIDE_TYPES: dict[str, GuideType] = {name: name for name in GUIDE_TYPES}
_GUIDE_REMEDIES = {
    "tensorrt_llm": "set guided_decoding_backend: xgrammar for tensorrt_llm in the server configuration",
    "transformers": "its tokenizer.json is missing or not understood: the engine's log tells",
    "vllm": "its tokenizer.json is missing or not understood: the engine's log tells",
}
"""Where an engine of this kind could follow guides, but this one can't."""
_ENGINES_WITH_GUIDED_LENGTHS = ("transformers",)
"""The others would be left without any token where the guide asks for the end and min_length forbids it."""


def parse_guide(row: Row, ready: Ready) -> Guide | None:
    name, text = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    if name is None:
        if text is not None:
            expected = f"one of {', '.join(GUIDE_TYPES)}, because there is a guided_decoding_guide"
            raise InvalidTensor(name="guided_decoding_guide_type", expected=expected, value=name)
        return None
    if name not in _GUIDE_TYPES:
        expected = f"one of {', '.join(GUIDE_TYPES)}"
        raise InvalidTensor(name="guided_decoding_guide_type", expected=expected, value=name)
    kind = ready.engine_kind
    if name not in ready.guide_types:
        remedy = _GUIDE_REMEDIES.get(kind, NO_ENGINE_REMEDY)
        raise UnsupportedArgument(
            name="guided_decoding_guide_type", value=name, engine_kind=kind, remedy=remedy
        )
    if (text is None) != (name == "json"):
        expected = "left out with guided_decoding_guide_type json" if text else f"given, with the {name}"
        raise InvalidTensor(name="guided_decoding_guide", expected=expected, value=text)
    return Guide(_GUIDE_TYPES[name], text or "")


def refuse_beside_guide(submit: Submit, engine_kind: str) -> None:
    if submit.sampling.beam_width > 1:
        remedy = "a beam search can't follow a guide: leave one of the two out"
        raise UnsupportedArgument(
            name="beam_width", value=submit.sampling.beam_width, engine_kind=engine_kind, remedy=remedy
        )
    if submit.min_tokens and engine_kind not in _ENGINES_WITH_GUIDED_LENGTHS:
        remedy = "beside a guide, which says where the output may end, leave it out"
        raise UnsupportedArgument(
            name="min_length", value=submit.min_tokens, engine_kind=engine_kind, remedy=remedy
        )
