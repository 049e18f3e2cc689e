"""How models of each family write a message."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.chat.families.family import Family
from runner.chat.families.glm import KeyValueCalls
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.qwen3_coder import FunctionCalls
from runner.chat.families.recognition import FAMILIES
from runner.chat.families.syntax.brace_calls import BraceCalls
from runner.chat.families.syntax.invoke_calls import InvokeCalls
from tests.runner.chat.families.answers import Writer


@dataclass(frozen=True)
class Wanted:
    """A message that a model wants to write; arguments by their names."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


Write = Callable[[Writer, Wanted], None]


def of(name: str, write_calls: Callable[..., None]) -> Write:
    """Return what writes a message of this family; ``write_calls`` writes its calls."""

    def write(writer: Writer, wanted: Wanted) -> None:
        _before(writer, wanted, FAMILIES[name])
        write_calls(writer, wanted, FAMILIES[name].calls)

    return write


def dumps(arguments: dict[str, Any]) -> str:
    """Write arguments as models do: the text depends on them alone."""
    return json.dumps(
        arguments, ensure_ascii=len(arguments) % 2 == 0, indent=1 if len(arguments) > 2 else None
    )


def json_calls(
    writer: Writer,
    wanted: Wanted,
    calls: object,
    begin: str,
    end: str,
    *,
    is_list: bool = True,
    name: str = "name",
    arguments: str = "arguments",
) -> None:
    objects = [
        f'{{"{name}": {json.dumps(called)}, "{arguments}": {dumps(each)}}}' for called, each in wanted.calls
    ]
    if is_list and objects:
        in_markers(writer, begin)
        writer.text("[" + ",\n ".join(objects) + "]").marker(end)
    for number, text in enumerate(() if is_list else objects):
        writer.text("\n" if number else "")
        in_markers(writer, begin)
        writer.text(f"\n{text}\n").marker(end)


def _before(writer: Writer, wanted: Wanted, family: Family) -> None:
    """Write reasoning and content."""
    if wanted.reasoning:
        writer.marker(family.reasoning.begin).text(f"\n{wanted.reasoning}\n").marker(family.reasoning.end)
        writer.text("\n\n")
    if wanted.content and family.wrappers:
        wrapper = family.wrappers[len(wanted.content) % len(family.wrappers)]
        writer.marker(wrapper.begin).text(wanted.content).marker(wrapper.end)
    else:
        writer.text(wanted.content)


def llama3(writer: Writer, wanted: Wanted, calls: object) -> None:
    objects = [f'{{"name": "{name}", "parameters": {dumps(each)}}}' for name, each in wanted.calls]
    if len(objects) > 1:
        writer.marker("<|python_tag|>")
    writer.text("; ".join(objects))


def mistral(writer: Writer, wanted: Wanted, calls: object, *, has_ids: bool) -> None:
    for name, arguments in wanted.calls:
        writer.marker("[TOOL_CALLS]").text(name)
        if has_ids:
            writer.marker("[CALL_ID]").text("aB3dE6gH9")
        writer.marker("[ARGS]").text(dumps(arguments))


def deepseek(writer: Writer, wanted: Wanted, calls: object, *, is_fenced: bool) -> None:
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


def kimi(writer: Writer, wanted: Wanted, calls: object) -> None:
    if wanted.calls:
        writer.marker("<|tool_calls_section_begin|>")
    for number, (name, arguments) in enumerate(wanted.calls):
        writer.marker("<|tool_call_begin|>").text(f"functions.{name}:{number}")
        writer.marker("<|tool_call_argument_begin|>").text(dumps(arguments)).marker("<|tool_call_end|>")
    if wanted.calls:
        writer.marker("<|tool_calls_section_end|>")


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def in_markers(writer: Writer, text: str) -> None:
    """Write ``text``, which is markers and no text of a client."""
    tokens = [token.content for token in writer.tokenizer.get_added_tokens_decoder().values()]
    for part in re.split(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})", text):
        writer.marker(part)


def functions(writer: Writer, wanted: Wanted, calls: FunctionCalls) -> None:
    for called, arguments in wanted.calls:
        writer.text("\n").marker(calls.begin).text(f"\n<function={called}>\n")
        for key, value in arguments.items():
            writer.text(f"<parameter={key}>\n{raw(value)}\n</parameter>\n")
        writer.text("</function>\n").marker(calls.end)


def invokes(writer: Writer, wanted: Wanted, calls: InvokeCalls) -> None:
    if wanted.calls and calls.section:
        writer.text("\n\n").marker(f"<{calls.section}>").text("\n")
    for called, arguments in wanted.calls:
        writer.text(f'{calls.call}{called}">\n')
        for key, value in arguments.items():
            is_text = f' string="{"true" if isinstance(value, str) else "false"}"' * calls.tells_types
            writer.text(f'{calls.parameter}{key}"{is_text}>{raw(value)}{calls.parameter_end}\n')
        writer.text(f"{calls.call_end}\n")
    if wanted.calls:
        writer.marker(calls.end)


def key_values(writer: Writer, wanted: Wanted, calls: KeyValueCalls) -> None:
    if wanted.calls:
        writer.marker(calls.section_begin)
    for called, arguments in wanted.calls:
        writer.marker(calls.begin).text(called).marker(calls.after_name).text("\n" if arguments else "")
        for key, value in arguments.items():
            writer.marker(calls.key).text(key).marker(calls.key_end).text("\n")
            if calls.type_begin:
                writer.marker(calls.type_begin).text(_type(value)).marker(calls.type_end)
            writer.marker(calls.value).text(raw(value)).marker(calls.value_end).text("\n")
        writer.marker(calls.end).text("\n")
    if wanted.calls:
        writer.marker(calls.section_end)


def python(writer: Writer, wanted: Wanted, calls: PythonCalls) -> None:
    written = [
        f"{called}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for called, arguments in wanted.calls
    ]
    if written:
        text = f"[{', '.join(written)}]" if calls.is_list else "\n".join(written)
        writer.marker("".join(calls.begins)).text(text).marker(calls.end)


def braces(writer: Writer, wanted: Wanted, calls: BraceCalls) -> None:
    def value(writer: Writer, given: Any, *, is_first: bool = True) -> None:
        if isinstance(given, str) or (is_first and not calls.tells_types):
            writer.marker(calls.quote).text(raw(given)).marker(calls.quote)
        elif isinstance(given, list):
            writer.text("[")
            for number, each in enumerate(given):
                writer.text("," * bool(number))
                value(writer, each, is_first=False)
            writer.text("]")
        elif isinstance(given, dict):
            members(writer, given, is_first=False)
        else:
            writer.text(json.dumps(given))

    def members(writer: Writer, given: dict[str, Any], *, is_first: bool = True) -> None:
        writer.text("{")
        for number, (key, each) in enumerate(given.items()):
            writer.text(f"{',' * bool(number)}{key}:")
            value(writer, each, is_first=is_first)
        writer.text("}")

    for called, arguments in wanted.calls:
        writer.marker(calls.begin).text(f"call:{called}")
        members(writer, arguments)
        writer.marker(calls.end)


def elements(writer: Writer, wanted: Wanted, calls: object) -> None:
    mark = "]<]minimax[>["

    def element(name: str, value: Any) -> None:
        writer.marker(mark).text(f"<{name}>")
        members = [("item", each) for each in value] if isinstance(value, list) else value
        if isinstance(members, list | dict):
            for key, each in members.items() if isinstance(members, dict) else members:
                element(key, each)
        else:
            writer.text(raw(value))
        writer.marker(mark).text(f"</{name}>")

    if wanted.calls:
        writer.marker(mark).text("<tool_call>\n")
    for called, arguments in wanted.calls:
        writer.marker(mark).text(f'<invoke name="{called}">')
        for key, value in arguments.items():
            element(key, value)
        writer.marker(mark).text("</invoke>\n")
    if wanted.calls:
        writer.marker(mark).text("</tool_call>")


def kimi_k3(writer: Writer, wanted: Wanted) -> None:
    for name, text in (("think", wanted.reasoning), ("response", wanted.content)):
        if text:
            in_markers(writer, f"<|open|>{name}<|sep|>")
            writer.text(text)
            in_markers(writer, f"<|close|>{name}<|sep|>")
    if wanted.calls:
        in_markers(writer, "<|open|>tools<|sep|>")
    for number, (called, arguments) in enumerate(wanted.calls):
        in_markers(writer, f'<|open|>call tool="{called}" index="{number}"<|sep|>')
        for key, value in arguments.items():
            in_markers(writer, f'<|open|>argument key="{key}" type="{_type(value)}"<|sep|>')
            writer.text(raw(value))
            in_markers(writer, "<|close|>argument<|sep|>")
        in_markers(writer, "<|close|>call<|sep|>")
    in_markers(writer, "<|close|>tools<|sep|>" * bool(wanted.calls) + "<|close|>message<|sep|>")


def apertus(writer: Writer, wanted: Wanted, calls: object) -> None:
    if wanted.calls:
        objects = [f"{{{json.dumps(called)}: {dumps(arguments)}}}" for called, arguments in wanted.calls]
        writer.marker("<|tools_prefix|>").text(f"[{', '.join(objects)}]").marker("<|tools_suffix|>")


def functionary(writer: Writer, wanted: Wanted) -> None:
    parts = [("all", wanted.content)] if wanted.content else []
    parts += [(called, dumps(arguments)) for called, arguments in wanted.calls]
    for number, (name, text) in enumerate(parts):
        writer.marker(">>>" * bool(number)).text(f"{name}\n{text}")


def functionary_31(writer: Writer, wanted: Wanted, calls: object) -> None:
    for called, arguments in wanted.calls:
        writer.marker(f"<function={called}>").text(dumps(arguments)).marker("</function>")


def solar(writer: Writer, wanted: Wanted) -> None:
    begun = ""
    for begin, text in (("<|think|>", wanted.reasoning), ("<|content|>", wanted.content)):
        if text:
            in_markers(writer, begun + begin)
            writer.text(text).marker("<|end|>")
            begun = "<|begin|>assistant"
    if wanted.calls:
        in_markers(writer, f"{begun}<|tool_calls|>")
    for called, arguments in wanted.calls:
        in_markers(writer, f"<|tool_call:begin|>a1<|tool_call:name|>{called}<|tool_call:args|>")
        writer.text(dumps(arguments)).marker("<|tool_call:end|>")
    if wanted.calls:
        writer.marker("<|calls|>")


def _type(value: Any) -> str:
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "number"


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
