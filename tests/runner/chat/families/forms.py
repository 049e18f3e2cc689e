"""How models of each family write a message: what the property tests read back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.chat.families.family import Family
from runner.chat.families.recognition import FAMILIES
from tests.runner.chat.families.answers import Writer


@dataclass(frozen=True)
class Wanted:
    """A message that a model wants to write; arguments by their names."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


Write = Callable[[Writer, Wanted], None]


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


def dumps(arguments: dict[str, Any]) -> str:
    """As models write arguments: the text depends on them alone."""
    return json.dumps(
        arguments, ensure_ascii=len(arguments) % 2 == 0, indent=1 if len(arguments) > 2 else None
    )


def _json(begin: str, end: str, *, is_list: bool, **keys: str) -> Write:
    name_key, arguments_key = keys.get("name", "name"), keys.get("arguments", "arguments")

    def write(writer: Writer, wanted: Wanted) -> None:
        _before(writer, wanted, FAMILIES[keys["family"]])
        objects = [
            f'{{"{name_key}": {json.dumps(name)}, "{arguments_key}": {dumps(arguments)}}}'
            for name, arguments in wanted.calls
        ]
        if is_list and objects:
            writer.marker(begin).text("[" + ",\n ".join(objects) + "]").marker(end)
        for number, text in enumerate(() if is_list else objects):
            writer.text("\n" if number else "").marker(begin).text(f"\n{text}\n").marker(end)

    return write


def _before(writer: Writer, wanted: Wanted, family: Family) -> None:
    """Reasoning and content."""
    if wanted.reasoning:
        assert family.reasoning is not None
        writer.marker(family.reasoning.begin).text(f"\n{wanted.reasoning}\n").marker(family.reasoning.end)
        writer.text("\n\n")
    if wanted.content and family.wrappers:
        wrapper = family.wrappers[len(wanted.content) % len(family.wrappers)]
        writer.marker(wrapper.begin).text(wanted.content).marker(wrapper.end)
    else:
        writer.text(wanted.content)


def _llama3(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["llama3"])
    objects = [f'{{"name": "{name}", "parameters": {dumps(each)}}}' for name, each in wanted.calls]
    if len(objects) > 1:
        writer.marker("<|python_tag|>")
    writer.text("; ".join(objects))


def _mistral(writer: Writer, wanted: Wanted, *, has_ids: bool) -> None:
    _before(writer, wanted, FAMILIES["mistral"])
    for name, arguments in wanted.calls:
        writer.marker("[TOOL_CALLS]").text(name)
        if has_ids:
            writer.marker("[CALL_ID]").text("aB3dE6gH9")
        writer.marker("[ARGS]").text(dumps(arguments))


def _deepseek(writer: Writer, wanted: Wanted, *, is_fenced: bool) -> None:
    _before(writer, wanted, FAMILIES["deepseek-v3"])
    if wanted.calls:
        writer.marker("<｜tool▁calls▁begin｜>")
    for number, (name, arguments) in enumerate(wanted.calls):
        writer.text("\n" if number and is_fenced else "").marker("<｜tool▁call▁begin｜>")
        if is_fenced:
            writer.text("function").marker("<｜tool▁sep｜>")
            writer.text(f"{name}\n```json\n{dumps(arguments)}\n```")
        else:
            writer.text(name).marker("<｜tool▁sep｜>").text(dumps(arguments))
        writer.marker("<｜tool▁call▁end｜>")
    if wanted.calls:
        writer.marker("<｜tool▁calls▁end｜>")


def _kimi(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["kimi-k2"])
    if wanted.calls:
        writer.marker("<|tool_calls_section_begin|>")
    for number, (name, arguments) in enumerate(wanted.calls):
        writer.marker("<|tool_call_begin|>").text(f"functions.{name}:{number}")
        writer.marker("<|tool_call_argument_begin|>").text(dumps(arguments)).marker("<|tool_call_end|>")
    if wanted.calls:
        writer.marker("<|tool_calls_section_end|>")


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _qwen3_coder(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["qwen3-coder"])
    for name, arguments in wanted.calls:
        writer.text("\n").marker("<tool_call>").text(f"\n<function={name}>\n")
        for key, value in arguments.items():
            writer.text(f"<parameter={key}>\n{raw(value)}\n</parameter>\n")
        writer.text("</function>\n").marker("</tool_call>")


def _dsml(writer: Writer, wanted: Wanted, *, section: str) -> None:
    _before(writer, wanted, FAMILIES["deepseek-v3.2"])
    if wanted.calls:
        writer.text(f"\n\n<｜DSML｜{section}>\n")
    for name, arguments in wanted.calls:
        writer.text(f'<｜DSML｜invoke name="{name}">\n')
        for key, value in arguments.items():
            is_text = "true" if isinstance(value, str) else "false"
            writer.text(
                f'<｜DSML｜parameter name="{key}" string="{is_text}">{raw(value)}</｜DSML｜parameter>\n'
            )
        writer.text("</｜DSML｜invoke>\n")
    if wanted.calls:
        writer.text(f"</｜DSML｜{section}>")


def _glm(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["glm"])
    for name, arguments in wanted.calls:
        writer.marker("<tool_call>").text(name + ("\n" if arguments else ""))
        for key, value in arguments.items():
            writer.marker("<arg_key>").text(key).marker("</arg_key>").text("\n")
            writer.marker("<arg_value>").text(raw(value)).marker("</arg_value>").text("\n")
        writer.marker("</tool_call>").text("\n")


def _llama4(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["llama4"])
    if wanted.calls:
        calls = [
            f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for name, arguments in wanted.calls
        ]
        writer.marker("<|python_start|>").text(f"[{', '.join(calls)}]").marker("<|python_end|>")


def _gpt_oss(writer: Writer, wanted: Wanted) -> None:
    messages = []
    if wanted.reasoning:
        messages.append(("analysis", wanted.reasoning))
    messages += [(f"commentary to=functions.{name} ", dumps(arguments)) for name, arguments in wanted.calls]
    if wanted.content:
        messages.append(("final", wanted.content))
    for number, (header, text) in enumerate(messages):
        if number:
            writer.marker("<|end|>" if number % 2 else "<|call|>").marker("<|start|>").text("assistant")
        writer.marker("<|channel|>").text(header)
        if "to=" in header:
            writer.marker("<|constrain|>").text("json")
        writer.marker("<|message|>").text(text)


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
_hermes = _json("<tool_call>", "</tool_call>", is_list=False, family="hermes")
_command = _json(
    *_COMMAND_TOKENS[:2], is_list=True, name="tool_name", arguments="parameters", family="command-r"
)


def _forms() -> dict[str, Form]:
    family = FAMILIES
    return {
        "hermes": Form(family["hermes"], _hermes, ("<|im_end|>",), _HERMES_TOKENS),
        "hermes, markers as text": Form(family["hermes"], _hermes),
        "qwen3-coder": Form(
            family["qwen3-coder"], _qwen3_coder, (), _HERMES_TOKENS, keeps_text=False, has_types=False
        ),
        "qwen3-coder, markers as text": Form(
            family["qwen3-coder"], _qwen3_coder, keeps_text=False, has_types=False
        ),
        "llama3": Form(
            family["llama3"], _llama3, ("<|python_tag|>", "<|eot_id|>"), has_content_with_calls=False
        ),
        "llama4": Form(family["llama4"], _llama4, ("<|python_start|>", "<|python_end|>"), keeps_text=False),
        "mistral-list": Form(
            family["mistral-list"],
            _json("[TOOL_CALLS]", "", is_list=True, family="mistral-list"),
            ("[TOOL_CALLS]",),
        ),
        "mistral v11": Form(
            family["mistral"],
            lambda writer, wanted: _mistral(writer, wanted, has_ids=True),
            ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        ),
        "mistral v13": Form(
            family["mistral"],
            lambda writer, wanted: _mistral(writer, wanted, has_ids=False),
            ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        ),
        "deepseek-v3": Form(
            family["deepseek-v3"],
            lambda writer, wanted: _deepseek(writer, wanted, is_fenced=True),
            (),
            _DEEPSEEK_TOKENS,
        ),
        "deepseek-v3.1": Form(
            family["deepseek-v3.1"],
            lambda writer, wanted: _deepseek(writer, wanted, is_fenced=False),
            _DEEPSEEK_TOKENS,
        ),
        "deepseek-v3.2": Form(
            family["deepseek-v3.2"],
            lambda writer, wanted: _dsml(writer, wanted, section="function_calls"),
            (),
            _THINK,
            keeps_text=False,
        ),
        "deepseek-v4": Form(
            family["deepseek-v4"],
            lambda writer, wanted: _dsml(writer, wanted, section="tool_calls"),
            (),
            _THINK,
            keeps_text=False,
        ),
        "kimi-k2": Form(family["kimi-k2"], _kimi, _KIMI_TOKENS, _THINK),
        "glm": Form(family["glm"], _glm, (), _GLM_TOKENS, keeps_text=False, has_types=False),
        "gpt-oss": Form(family["gpt-oss"], _gpt_oss, _HARMONY_TOKENS),
        "granite": Form(
            family["granite"],
            _json("<|tool_call|>", "", is_list=True, family="granite"),
            ("<|tool_call|>",),
        ),
        "granite-3.2": Form(
            family["granite-3.2"], _json("<tool_call>", "", is_list=True, family="granite-3.2")
        ),
        "phi4": Form(
            family["phi4"],
            _json("<|tool_call|>", "<|/tool_call|>", is_list=True, family="phi4"),
            ("<|tool_call|>", "<|/tool_call|>"),
        ),
        "phi4, functools": Form(family["phi4"], _json("functools", "", is_list=True, family="phi4")),
        "command-r": Form(family["command-r"], _command, _COMMAND_TOKENS),
        "command-r-2024": Form(
            family["command-r-2024"],
            _json(
                *("Action: ```json", "```"),
                is_list=True,
                name="tool_name",
                arguments="parameters",
                family="command-r-2024",
            ),
        ),
        "generic": Form(
            family["generic"],
            _json("", "", is_list=True, family="generic"),
            has_content_with_calls=False,
        ),
    }


FORMS = _forms()

_TEXTS = (
    *("a", "It is 5.", " \n", "é 日本 🎉", '"', "\\", "{", "}", "[x](y)", "<", "</", "; ", ", ", "'", "&lt;"),
    *("<tool", "<|", "[TOOL", "{}", "null", "\t", "``", "\\n", "name"),
)


def random_text(rng: random.Random, extra: tuple[str, ...], most: int = 8) -> str:
    """Without whitespace around it. ``extra``: texts that look like markers."""
    texts = [rng.choice(_TEXTS + extra) for _ in range(rng.randint(1, most))]
    return ("x" + "".join(texts)).strip()


def random_wanted(form: Form, rng: random.Random) -> Wanted:
    tokens = form.special + form.added  # Spelled in ordinary tokens they are text, also in values.
    calls = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        arguments: dict[str, Any] = {}
        if rng.random() < 0.9:
            for key in rng.sample(("text", "number", "flag", "items", "any", "other"), rng.randint(0, 4)):
                arguments[key] = _random_value(key, rng, tokens)
        calls.append((rng.choice(("get_weather", "f", "unknown.tool")), arguments))
    has_content = not calls or (form.has_content_with_calls and rng.random() < 0.5)
    return Wanted(
        random_text(rng, tokens) if has_content else "",
        random_text(rng, tokens) if form.has_reasoning and rng.random() < 0.5 else "",
        tuple(calls),
    )


def _random_value(key: str, rng: random.Random, tokens: tuple[str, ...]) -> Any:
    if key == "number":
        return rng.choice((0, -1, 2.5, 10**20))
    if key == "flag":
        return rng.choice((True, False, None))
    if key == "items":
        return [{"a": [1, random_text(rng, tokens, 2)]}, []]
    return random_text(rng, tokens)


SCHEMA = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "flag": {"type": ["boolean", "null"]},
    "items": {"type": "array"},
    "any": {"type": ["string", "null"]},
}
