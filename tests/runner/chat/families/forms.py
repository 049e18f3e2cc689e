"""Each family's way of writing a message, with its tokens: what the property tests read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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


_THINK = ("<think>", "</think>")
_HERMES_TOKENS = ("<tool_call>", "</tool_call>", *_THINK)
_HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
_GLM_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    *_THINK,
)
_DEEPSEEK_TOKENS = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", *_THINK),
)
_KIMI_TOKENS = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
_COMMAND_TOKENS = (
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
_hermes = writing.json_calls("<tool_call>", "</tool_call>", is_list=False, family="hermes")
_command = writing.json_calls(
    *_COMMAND_TOKENS[:2], is_list=True, name="tool_name", arguments="parameters", family="command-r"
)

_SOLAR_TOKENS = (
    *("<|think|>", "<|end|>", "<|begin|>", "<|content|>", "<|tool_calls|>", "<|calls|>"),
    *("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
)


def _untyped(name: str, writes: Callable[[str], Write], added: tuple[str, ...] = ()) -> Form:
    """A form whose schemas tell types."""
    return Form(FAMILIES[name], writes(name), (), added, keeps_text=False, has_types=False)


def _elements(*added: str) -> Form:
    family = FAMILIES["minimax-m3"]
    return Form(
        family, writing.elements, (), added, keeps_text=False, has_types=False, has_nested_types=False
    )


def _forms() -> dict[str, Form]:
    family = FAMILIES
    return {
        "hermes": Form(family["hermes"], _hermes, ("<|im_end|>",), _HERMES_TOKENS),
        "hermes, markers as text": Form(family["hermes"], _hermes),
        "qwen3-coder": Form(
            family["qwen3-coder"],
            writing.functions("qwen3-coder"),
            (),
            _HERMES_TOKENS,
            keeps_text=False,
            has_types=False,
        ),
        "qwen3-coder, markers as text": Form(
            family["qwen3-coder"], writing.functions("qwen3-coder"), keeps_text=False, has_types=False
        ),
        "llama3": Form(
            family["llama3"], writing.llama3, ("<|python_tag|>", "<|eot_id|>"), has_content_with_calls=False
        ),
        "llama4": Form(
            family["llama4"],
            writing.python("llama4"),
            ("<|python_start|>", "<|python_end|>"),
            keeps_text=False,
        ),
        "mistral-list": Form(
            family["mistral-list"],
            writing.json_calls("[TOOL_CALLS]", "", is_list=True, family="mistral-list"),
            ("[TOOL_CALLS]",),
        ),
        "mistral v11": Form(
            family["mistral"],
            lambda writer, wanted: writing.mistral(writer, wanted, has_ids=True),
            ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        ),
        "mistral v13": Form(
            family["mistral"],
            lambda writer, wanted: writing.mistral(writer, wanted, has_ids=False),
            ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        ),
        "deepseek-v3": Form(
            family["deepseek-v3"],
            lambda writer, wanted: writing.deepseek(writer, wanted, is_fenced=True),
            (),
            _DEEPSEEK_TOKENS,
        ),
        "deepseek-v3.1": Form(
            family["deepseek-v3.1"],
            lambda writer, wanted: writing.deepseek(writer, wanted, is_fenced=False),
            _DEEPSEEK_TOKENS,
        ),
        "deepseek-v3.2": Form(
            family["deepseek-v3.2"],
            writing.invokes("deepseek-v3.2"),
            (),
            _THINK,
            keeps_text=False,
        ),
        "deepseek-v4": Form(
            family["deepseek-v4"],
            writing.invokes("deepseek-v4"),
            (),
            _THINK,
            keeps_text=False,
        ),
        "kimi-k2": Form(family["kimi-k2"], writing.kimi, _KIMI_TOKENS, _THINK),
        "glm": Form(
            family["glm"], writing.key_values("glm"), (), _GLM_TOKENS, keeps_text=False, has_types=False
        ),
        "gpt-oss": Form(family["gpt-oss"], writing.gpt_oss, _HARMONY_TOKENS),
        "granite": Form(
            family["granite"],
            writing.json_calls("<|tool_call|>", "", is_list=True, family="granite"),
            ("<|tool_call|>",),
        ),
        "granite-3.2": Form(
            family["granite-3.2"], writing.json_calls("<tool_call>", "", is_list=True, family="granite-3.2")
        ),
        "phi4": Form(
            family["phi4"],
            writing.json_calls("<|tool_call|>", "<|/tool_call|>", is_list=True, family="phi4"),
            ("<|tool_call|>", "<|/tool_call|>"),
        ),
        "phi4, functools": Form(
            family["phi4"], writing.json_calls("functools", "", is_list=True, family="phi4")
        ),
        "command-r": Form(family["command-r"], _command, _COMMAND_TOKENS),
        "command-r-2024": Form(
            family["command-r-2024"],
            writing.json_calls(
                *("Action: ```json", "```"),
                is_list=True,
                name="tool_name",
                arguments="parameters",
                family="command-r-2024",
            ),
        ),
        "deepseek-v4.1": Form(
            family["deepseek-v4.1"], writing.invokes("deepseek-v4.1"), (), _THINK, keeps_text=False
        ),
        "minimax-m2": _untyped(
            "minimax-m2", writing.invokes, ("<minimax:tool_call>", "</minimax:tool_call>")
        ),
        "minicpm-5": _untyped("minicpm-5", writing.invokes, _THINK),
        "seed-oss": _untyped("seed-oss", writing.functions, ("<seed:tool_call>", "</seed:tool_call>")),
        "hunyuan-3": _untyped("hunyuan-3", writing.key_values, ("<tool_call:opensource>",)),
        "hunyuan-3, markers as text": _untyped("hunyuan-3", writing.key_values),
        "longcat-lite": _untyped(
            "longcat-lite", writing.key_values, ("<longcat_tool_call>", "</longcat_tool_call>")
        ),
        "k2-horizon": Form(family["k2-horizon"], writing.key_values("k2-horizon"), keeps_text=False),
        "minimax-m3": _elements("]<]minimax[>["),
        "minimax-m3, markers as text": _elements(),
        "lfm2": Form(
            family["lfm2"],
            writing.python("lfm2"),
            ("<|tool_call_start|>", "<|tool_call_end|>"),
            _THINK,
            keeps_text=False,
        ),
        "olmo3": Form(family["olmo3"], writing.python("olmo3"), keeps_text=False),
        "gemma-4": Form(
            family["gemma-4"],
            writing.braces("gemma-4"),
            ("<|tool_call>", "<tool_call|>", '<|"|>'),
            keeps_text=False,
        ),
        "functiongemma": Form(
            family["functiongemma"],
            writing.braces("functiongemma"),
            ("<escape>",),
            keeps_text=False,
            has_types=False,
        ),
        "kimi-k3": Form(
            family["kimi-k3"], writing.kimi_k3, ("<|open|>", "<|close|>", "<|sep|>"), keeps_text=False
        ),
        "apertus": Form(
            family["apertus"],
            writing.apertus,
            ("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"),
        ),
        "solar": Form(family["solar"], writing.solar, _SOLAR_TOKENS),
        "functionary": Form(family["functionary"], writing.functionary),
        "functionary-3.1": Form(family["functionary-3.1"], writing.functionary_31),
        "intern": Form(
            family["intern"],
            writing.json_calls(
                "<|action_start|><|plugin|>",
                "<|action_end|>",
                is_list=False,
                arguments="parameters",
                family="intern",
            ),
            ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        ),
        "apriel": Form(
            family["apriel"],
            writing.json_calls("<tool_calls>", "</tool_calls>", is_list=True, family="apriel"),
        ),
        "xlam": Form(family["xlam"], writing.json_calls("```json", "```", is_list=True, family="xlam")),
        "generic": Form(
            family["generic"],
            writing.json_calls("", "", is_list=True, family="generic"),
            has_content_with_calls=False,
        ),
    }


FORMS = _forms()
