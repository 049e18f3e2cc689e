"""Each family's way of writing a message, with its tokens: what the property tests read back."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Whether the arguments' own text is kept."""
    has_types: bool = True
    """Whether arguments have types without a schema."""
    has_nested_types: bool = True
    """Whether values in lists and objects have types without a schema."""
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
    write = writing.json_calls(begin, end, family=name, **{"is_list": True, **options})
    return _form(name, write, special, added, flags)


_TOOL: dict[str, Any] = {"name": "tool_name", "arguments": "parameters"}
FORMS = {
    "hermes": _json("hermes", "<tool_call>", "</tool_call>", "<|im_end|>", _HERMES, is_list=False),
    "hermes, markers as text": _json("hermes", "<tool_call>", "</tool_call>", is_list=False),
    "qwen3-coder": _form("qwen3-coder", writing.functions("qwen3-coder"), "", _HERMES, _UNTYPED),
    "qwen3-coder, markers as text": _form("qwen3-coder", writing.functions("qwen3-coder"), flags=_UNTYPED),
    "llama3": _form("llama3", writing.llama3, "<|python_tag|> <|eot_id|>", flags=_ALONE),
    "llama4": _form("llama4", writing.python("llama4"), "<|python_start|> <|python_end|>", flags=_NO_TEXT),
    "mistral-list": _json("mistral-list", "[TOOL_CALLS]", "", "[TOOL_CALLS]"),
    "mistral v11": _form(
        "mistral",
        partial(writing.mistral, has_ids=True),
        "[TOOL_CALLS] [ARGS] [CALL_ID] [THINK] [/THINK]",
    ),
    "mistral v13": _form(
        "mistral", partial(writing.mistral, has_ids=False), "[TOOL_CALLS] [ARGS] [THINK] [/THINK]"
    ),
    "deepseek-v3": _form(
        "deepseek-v3", partial(writing.deepseek, is_fenced=True), "", f"{_DEEPSEEK} {_THINK}"
    ),
    "deepseek-v3.1": _form(
        "deepseek-v3.1", partial(writing.deepseek, is_fenced=False), f"{_DEEPSEEK} {_THINK}"
    ),
    **{
        name: _form(name, writing.invokes(name), "", _THINK, _NO_TEXT)
        for name in ("deepseek-v3.2", "deepseek-v4", "deepseek-v4.1")
    },
    "kimi-k2": _form("kimi-k2", writing.kimi, _KIMI, _THINK),
    "glm": _form("glm", writing.key_values("glm"), "", _GLM, _UNTYPED),
    "gpt-oss": _form("gpt-oss", writing.gpt_oss, _HARMONY),
    "granite": _json("granite", "<|tool_call|>", "", "<|tool_call|>"),
    "granite-3.2": _json("granite-3.2", "<tool_call>", ""),
    "phi4": _json("phi4", "<|tool_call|>", "<|/tool_call|>", "<|tool_call|> <|/tool_call|>"),
    "phi4, functools": _json("phi4", "functools", ""),
    "command-r": _json("command-r", "<|START_ACTION|>", "<|END_ACTION|>", _COMMAND, **_TOOL),
    "command-r-2024": _json("command-r-2024", "Action: ```json", "```", **_TOOL),
    "minimax-m2": _form(
        "minimax-m2",
        writing.invokes("minimax-m2"),
        "",
        "<minimax:tool_call> </minimax:tool_call>",
        _UNTYPED,
    ),
    "minicpm-5": _form("minicpm-5", writing.invokes("minicpm-5"), "", _THINK, _UNTYPED),
    "seed-oss": _form(
        "seed-oss", writing.functions("seed-oss"), "", "<seed:tool_call> </seed:tool_call>", _UNTYPED
    ),
    "hunyuan-3": _form("hunyuan-3", writing.key_values("hunyuan-3"), "", "<tool_call:opensource>", _UNTYPED),
    "hunyuan-3, markers as text": _form("hunyuan-3", writing.key_values("hunyuan-3"), flags=_UNTYPED),
    "longcat-lite": _form(
        "longcat-lite",
        writing.key_values("longcat-lite"),
        "",
        "<longcat_tool_call> </longcat_tool_call>",
        _UNTYPED,
    ),
    "k2-horizon": _form("k2-horizon", writing.key_values("k2-horizon"), flags=_NO_TEXT),
    "minimax-m3": _form("minimax-m3", writing.elements, "", "]<]minimax[>[", _ELEMENTS),
    "minimax-m3, markers as text": _form("minimax-m3", writing.elements, flags=_ELEMENTS),
    "lfm2": _form("lfm2", writing.python("lfm2"), "<|tool_call_start|> <|tool_call_end|>", _THINK, _NO_TEXT),
    "olmo3": _form("olmo3", writing.python("olmo3"), flags=_NO_TEXT),
    "gemma-4": _form("gemma-4", writing.braces("gemma-4"), '<|tool_call> <tool_call|> <|"|>', flags=_NO_TEXT),
    "functiongemma": _form("functiongemma", writing.braces("functiongemma"), "<escape>", flags=_UNTYPED),
    "kimi-k3": _form("kimi-k3", writing.kimi_k3, "<|open|> <|close|> <|sep|>", flags=_NO_TEXT),
    "apertus": _form(
        "apertus", writing.apertus, "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>"
    ),
    "solar": _form("solar", writing.solar, _SOLAR),
    "functionary": _form("functionary", writing.functionary),
    "functionary-3.1": _form("functionary-3.1", writing.functionary_31),
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
