"""Rules of calls in the syntaxes that single families have."""

from runner.chat.families.syntax.brace_calls import BraceCalls
from runner.chat.families.syntax.channel_calls import ChannelCalls
from runner.chat.families.syntax.element_calls import MARK, ElementCalls
from runner.chat.families.syntax.keyed_calls import KeyedCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.calls import KEY, Calls, alternatives, arguments, several, value_of
from runner.chat.guides.parameters import Parameter, in_order, keywords, parameters_of, text_value
from runner.chat.guides.rules import SPACE, Rules, literal

_COMMA = f'"," {SPACE}'


def keyed_calls(syntax: KeyedCalls, tools: ToolUse, rules: Rules) -> Calls:
    def call(tool: Tool) -> str:
        return f'{literal(f"{{{literal(tool.name)}: ")} {arguments(tool, tools, rules)} "}}"'

    calls = several(alternatives(rules, tools, call), _COMMA, tools)
    body = f'{SPACE} "[" {calls} "]" {rules.marker(syntax.end)}'
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
