"""Rules of calls in the syntax of a family, and of the syntaxes that single families have."""

from collections.abc import Callable
from typing import Any

from errors.requests import InvalidGuide
from runner.chat.families.family import CallSyntax
from runner.chat.families.glm import KeyValueCalls
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.qwen3_coder import FunctionCalls
from runner.chat.families.syntax.brace_calls import BraceCalls
from runner.chat.families.syntax.channel_calls import ChannelCalls
from runner.chat.families.syntax.element_calls import MARK, ElementCalls
from runner.chat.families.syntax.invoke_calls import InvokeCalls
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.keyed_calls import KeyedCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides import calls
from runner.chat.guides.calls import KEY, Calls, alternatives, arguments, several, value_of
from runner.chat.guides.parameters import Parameter, in_order, keywords, parameters_of, text_value
from runner.chat.guides.rules import SPACE, Rules, literal

_COMMA = f'"," {SPACE}'


def call_rules(syntax: CallSyntax, tools: ToolUse, rules: Rules) -> Calls:
    """Return the rules of calls. Raises E1105 for a syntax or a schema that can't be enforced."""
    for kind, make in _RULES.items():
        if isinstance(syntax, kind):
            return make(syntax, tools, rules)
    reason = "the form of this model's calls can't be enforced; use tool_choice auto without strict tools"
    raise InvalidGuide(guide_type="chat_form", reason=reason)


def keyed_calls(syntax: KeyedCalls, tools: ToolUse, rules: Rules) -> Calls:
    def call(tool: Tool) -> str:
        return f'{literal(f"{{{literal(tool.name)}: ")} {arguments(tool, tools, rules)} "}}"'

    listed = several(alternatives(rules, tools, call), _COMMA, tools)
    body = f'{SPACE} "[" {listed} "]" {rules.marker(syntax.end)}'
    return Calls(syntax.begins[0], lambda begin: body, is_list=True)


def brace_calls(syntax: BraceCalls, tools: ToolUse, rules: Rules) -> Calls:
    def value(parameter: Parameter) -> str:
        name, quote = literal(f"{parameter.name}:"), rules.marker(syntax.quote)
        if parameter.is_text:
            return f"{name} {quote} {text_value(rules, parameter, '', syntax.quote)}"
        json_ = rules.schema(parameter.place, parameter.schema)
        return f"{name} {json_}" if syntax.tells_types else f"{name} {quote} {json_} {quote}"

    def call(tool: Tool) -> str:
        if tools.is_guided(tool):
            values = keywords(rules, parameters_of(tool), f"of_{tools.tools.index(tool)}", value)
        else:
            pair = f'{KEY} ":" {rules.marker(syntax.quote)} {rules.text_before("", syntax.quote)}'
            values = f"({pair} ({_COMMA} {pair})*)?"
        return f'{literal(f"call:{tool.name}{{")} {values} "}}" {rules.marker(syntax.end)}'

    one = alternatives(rules, tools, call)
    return Calls(syntax.begin, lambda begin: one)


def channel_calls(syntax: ChannelCalls, tools: ToolUse, rules: Rules) -> Calls:
    def head(name: str, type_: str) -> str:
        return rules.marker(f'{syntax.argument} key="{name}" type="{type_}"<|sep|>')

    def value(parameter: Parameter) -> str:
        begin = head(parameter.name, "string" if parameter.is_text else "object")
        return f"{begin} {value_of(parameter, rules, '', syntax.argument_end)}"

    def call(tool: Tool) -> str:
        begin = rules.marker(f'{syntax.call} tool="{tool.name}" index="')
        if tools.is_guided(tool):
            values = in_order(parameters_of(tool), value)
        else:
            key = f'{rules.marker(f"{syntax.argument} ")} "key=\\"" {KEY}'
            any_value = rules.text_before("", syntax.argument_end)
            values = f"({key} {rules.marker(f'{_TEXT}<|sep|>')} {any_value})*"
        after = rules.marker('"<|sep|>')
        return f"{begin} /[0-9]{{1,3}}/ {after} {values} {rules.marker(syntax.call_end)}"

    body = f"{several(alternatives(rules, tools, call), '', tools)} {rules.marker(syntax.end)}"
    return Calls(syntax.begins[0], lambda begin: body, is_list=True)


_TEXT = '" type="string"'


def element_calls(syntax: ElementCalls, tools: ToolUse, rules: Rules) -> Calls:
    def value(parameter: Parameter) -> str:
        end = f"{MARK}</{parameter.name}>"
        return f"{rules.marker(f'{MARK}<{parameter.name}>')} {value_of(parameter, rules, '', end)}"

    def call(tool: Tool) -> str:
        begin, end = rules.marker(f'{MARK}<invoke name="{tool.name}">'), rules.marker(f"{MARK}</invoke>")
        # NOTE: without a schema there are no elements: a grammar can't close one by the name that opened it.
        values = in_order(parameters_of(tool), value)
        return f"{begin} {values} {end} {SPACE}"

    body = f"{SPACE} {several(alternatives(rules, tools, call), '', tools)} {rules.marker(syntax.end)}"
    return Calls(syntax.begins[0], lambda begin: body, is_list=True)


_RULES: dict[type, Callable[[Any, ToolUse, Rules], Calls]] = {
    JsonCalls: calls.json_calls,
    NamedCalls: calls.named_calls,
    FunctionCalls: calls.function_calls,
    InvokeCalls: calls.invoke_calls,
    KeyValueCalls: calls.key_value_calls,
    PythonCalls: calls.python_calls,
    KeyedCalls: keyed_calls,
    BraceCalls: brace_calls,
    ChannelCalls: channel_calls,
    ElementCalls: element_calls,
}
