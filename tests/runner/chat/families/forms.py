"""Each family's way of writing a message, with its tokens: what the property tests read back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from runner.chat.families.family import Family
from runner.chat.families.recognition import FAMILIES
from tests.runner.chat.families import writing
from tests.runner.chat.families.writing import Write


@dataclass(frozen=True)
class Form:
    family: Family
    write: Write
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    has_content_with_calls: bool = True
    keeps_text: bool = True
    """True if the arguments' own text is kept."""
    has_types: bool = True
    """True if arguments have types without a schema."""
    has_nested_types: bool = True
    """True if values in lists and objects have types without a schema."""
    has_reasoning: bool = field(init=False)

    @property
    def has_text_markers(self) -> bool:
        family = self.family
        markers = {*family.calls.markers, *family.calls.begins} if family.calls is not None else set()
        for span in (family.reasoning, *family.wrappers):
            markers |= {span.begin, span.end} if span is not None and not family.has_channels else set()
        return not markers - {""} <= {*self.special, *self.added}

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_reasoning", self.family.reasoning is not None)


_THINK = "<think> </think>"
_HERMES = f"<tool_call> </tool_call> {_THINK}"
_HARMONY = "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|call|>"
_GLM = f"<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> {_THINK}"
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>"
)
_KIMI = (
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
    "<|tool_call_argument_begin|> <|tool_call_end|>"
)
_COMMAND = (
    "<|START_ACTION|> <|END_ACTION|> <|START_THINKING|> <|END_THINKING|> "
    "<|START_RESPONSE|> <|END_RESPONSE|> <|START_TEXT|> <|END_TEXT|>"
)
_SOLAR = (
    "<|think|> <|end|> <|begin|> <|content|> <|tool_calls|> <|calls|> "
    "<|tool_call:begin|> <|tool_call:name|> <|tool_call:args|> <|tool_call:end|>"
)
_NO_FLAGS: Mapping[str, bool] = MappingProxyType({})
_NO_TEXT = {"keeps_text": False}
_UNTYPED = {"keeps_text": False, "has_types": False}
_ELEMENTS = {**_UNTYPED, "has_nested_types": False}
_ALONE = {"has_content_with_calls": False}


def _form(
    name: str, write: Write, special: str = "", added: str = "", flags: Mapping[str, bool] = _NO_FLAGS
) -> Form:
    return Form(FAMILIES[name], write, tuple(special.split()), tuple(added.split()), **flags)


def _called(name: str, write_calls: Callable[..., None], *tokens: Any, **flags: Any) -> Form:
    return _form(name, writing.of(name, write_calls), *tokens, **flags)


def _json(
    name: str,
    begin: str,
    end: str,
    /,
    special: str = "",
    added: str = "",
    flags: Mapping[str, bool] = _NO_FLAGS,
    **options: Any,
) -> Form:
    return _called(name, partial(writing.json_calls, begin=begin, end=end, **options), special, added, flags)


_TOOL: dict[str, Any] = {"name": "tool_name", "arguments": "parameters"}
FORMS = {
    "hermes": _json("hermes", "<tool_call>", "</tool_call>", "<|im_end|>", _HERMES, is_list=False),
    "hermes, markers as text": _json("hermes", "<tool_call>", "</tool_call>", is_list=False),
    "qwen3-coder": _called("qwen3-coder", writing.functions, "", _HERMES, _UNTYPED),
    "qwen3-coder, markers as text": _called("qwen3-coder", writing.functions, flags=_UNTYPED),
    "llama3": _called("llama3", writing.llama3, "<|python_tag|> <|eot_id|>", flags=_ALONE),
    "llama4": _called("llama4", writing.python, "<|python_start|> <|python_end|>", flags=_NO_TEXT),
    "mistral-list": _json("mistral-list", "[TOOL_CALLS]", "", "[TOOL_CALLS]"),
    "mistral v11": _called(
        "mistral", partial(writing.mistral, has_ids=True), "[TOOL_CALLS] [ARGS] [CALL_ID] [THINK] [/THINK]"
    ),
    "mistral v13": _called(
        "mistral", partial(writing.mistral, has_ids=False), "[TOOL_CALLS] [ARGS] [THINK] [/THINK]"
    ),
    "deepseek-v3": _called(
        "deepseek-v3", partial(writing.deepseek, is_fenced=True), "", f"{_DEEPSEEK} {_THINK}"
    ),
    "deepseek-v3.1": _called(
        "deepseek-v3.1", partial(writing.deepseek, is_fenced=False), f"{_DEEPSEEK} {_THINK}"
    ),
    **{
        name: _called(name, writing.invokes, "", _THINK, _NO_TEXT)
        for name in ("deepseek-v3.2", "deepseek-v4", "deepseek-v4.1")
    },
    "kimi-k2": _called("kimi-k2", writing.kimi, _KIMI, _THINK),
    "glm": _called("glm", writing.key_values, "", _GLM, _UNTYPED),
    "gpt-oss": _form("gpt-oss", writing.gpt_oss, _HARMONY),
    "granite": _json("granite", "<|tool_call|>", "", "<|tool_call|>"),
    "granite-3.2": _json("granite-3.2", "<tool_call>", ""),
    "phi4": _json("phi4", "<|tool_call|>", "<|/tool_call|>", "<|tool_call|> <|/tool_call|>"),
    "phi4, functools": _json("phi4", "functools", ""),
    "command-r": _json("command-r", "<|START_ACTION|>", "<|END_ACTION|>", _COMMAND, **_TOOL),
    "command-r-2024": _json("command-r-2024", "Action: ```json", "```", **_TOOL),
    "minimax-m2": _called(
        "minimax-m2", writing.invokes, "", "<minimax:tool_call> </minimax:tool_call>", _UNTYPED
    ),
    "minicpm-5": _called("minicpm-5", writing.invokes, "", _THINK, _UNTYPED),
    "seed-oss": _called("seed-oss", writing.functions, "", "<seed:tool_call> </seed:tool_call>", _UNTYPED),
    "hunyuan-3": _called("hunyuan-3", writing.key_values, "", "<tool_call:opensource>", _UNTYPED),
    "hunyuan-3, markers as text": _called("hunyuan-3", writing.key_values, flags=_UNTYPED),
    "longcat-lite": _called(
        "longcat-lite", writing.key_values, "", "<longcat_tool_call> </longcat_tool_call>", _UNTYPED
    ),
    "k2-horizon": _called("k2-horizon", writing.key_values, flags=_NO_TEXT),
    "minimax-m3": _called("minimax-m3", writing.elements, "", "]<]minimax[>[", _ELEMENTS),
    "minimax-m3, markers as text": _called("minimax-m3", writing.elements, flags=_ELEMENTS),
    "lfm2": _called("lfm2", writing.python, "<|tool_call_start|> <|tool_call_end|>", _THINK, _NO_TEXT),
    "olmo3": _called("olmo3", writing.python, flags=_NO_TEXT),
    "gemma-4": _called("gemma-4", writing.braces, '<|tool_call> <tool_call|> <|"|>', flags=_NO_TEXT),
    "functiongemma": _called("functiongemma", writing.braces, "<escape>", flags=_UNTYPED),
    "kimi-k3": _form("kimi-k3", writing.kimi_k3, "<|open|> <|close|> <|sep|>", flags=_NO_TEXT),
    "apertus": _called(
        "apertus", writing.apertus, "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>"
    ),
    "solar": _form("solar", writing.solar, _SOLAR),
    "functionary": _form("functionary", writing.functionary),
    "functionary-3.1": _called("functionary-3.1", writing.functionary_31),
    "intern": _json(
        "intern",
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        "<|action_start|> <|plugin|> <|action_end|>",
        is_list=False,
        arguments="parameters",
    ),
    "apriel": _json("apriel", "<tool_calls>", "</tool_calls>"),
    "xlam": _json("xlam", "```json", "```"),
    "generic": _json("generic", "", "", flags=_ALONE),
}
