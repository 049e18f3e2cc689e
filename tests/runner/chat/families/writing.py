"""How models of each family write a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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


def dumps(arguments: dict[str, Any]) -> str:
    """As models write arguments: the text depends on them alone."""
    return json.dumps(
        arguments, ensure_ascii=len(arguments) % 2 == 0, indent=1 if len(arguments) > 2 else None
    )


def json_calls(begin: str, end: str, *, is_list: bool, **keys: str) -> Write:
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


def llama3(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["llama3"])
    objects = [f'{{"name": "{name}", "parameters": {dumps(each)}}}' for name, each in wanted.calls]
    if len(objects) > 1:
        writer.marker("<|python_tag|>")
    writer.text("; ".join(objects))


def mistral(writer: Writer, wanted: Wanted, *, has_ids: bool) -> None:
    _before(writer, wanted, FAMILIES["mistral"])
    for name, arguments in wanted.calls:
        writer.marker("[TOOL_CALLS]").text(name)
        if has_ids:
            writer.marker("[CALL_ID]").text("aB3dE6gH9")
        writer.marker("[ARGS]").text(dumps(arguments))


def deepseek(writer: Writer, wanted: Wanted, *, is_fenced: bool) -> None:
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


def kimi(writer: Writer, wanted: Wanted) -> None:
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


def qwen3_coder(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["qwen3-coder"])
    for name, arguments in wanted.calls:
        writer.text("\n").marker("<tool_call>").text(f"\n<function={name}>\n")
        for key, value in arguments.items():
            writer.text(f"<parameter={key}>\n{raw(value)}\n</parameter>\n")
        writer.text("</function>\n").marker("</tool_call>")


def dsml(writer: Writer, wanted: Wanted, *, section: str) -> None:
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


def glm(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["glm"])
    for name, arguments in wanted.calls:
        writer.marker("<tool_call>").text(name + ("\n" if arguments else ""))
        for key, value in arguments.items():
            writer.marker("<arg_key>").text(key).marker("</arg_key>").text("\n")
            writer.marker("<arg_value>").text(raw(value)).marker("</arg_value>").text("\n")
        writer.marker("</tool_call>").text("\n")


def llama4(writer: Writer, wanted: Wanted) -> None:
    _before(writer, wanted, FAMILIES["llama4"])
    if wanted.calls:
        calls = [
            f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for name, arguments in wanted.calls
        ]
        writer.marker("<|python_start|>").text(f"[{', '.join(calls)}]").marker("<|python_end|>")


def gpt_oss(writer: Writer, wanted: Wanted) -> None:
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
