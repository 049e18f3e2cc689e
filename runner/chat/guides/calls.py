"""Rules of calls, for each syntax that several families have."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from errors.requests import InvalidGuide
from runner.chat.families.glm import KeyValueCalls
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.qwen3_coder import FunctionCalls
from runner.chat.families.syntax.invoke_calls import IS_TEXT, InvokeCalls
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.parameters import Parameter, in_order, keywords, parameters_of, place_of, text_value
from runner.chat.guides.rules import SPACE, Rules, literal

KEY = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/"
_ANY_VALUE: dict[str, object] = {}
_OF_OTHERS = {
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
    *("allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas"),
}
"""Keys with which a schema restricts properties that it does not name."""


@dataclass(frozen=True)
class Calls:
    """Expressions of a grammar for calls."""

    begin: str
    """Marker before calls that the model is made to write; empty: there is none."""
    body: Callable[[str], str]
    """Function for what follows a marker, or none: one call, or several if the syntax has a list."""
    is_list: bool = False


def arguments(tool: Tool, tools: ToolUse, rules: Rules) -> str:
    """Return an object by the tool's schema, or any object if nothing requires the schema."""
    if not tools.is_guided(tool):
        return rules.schema(place_of(tool), {"type": "object"})
    try:
        return rules.schema(place_of(tool), {**closed(tool.parameters), "type": "object"})
    except RecursionError as exc:
        reason = f"{place_of(tool)}: they are nested too deeply"
        raise InvalidGuide(guide_type="json_schema", reason=reason) from exc


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Forbid properties that the schema does not name, where it says nothing of others.

    Every value of the result also fits ``schema``. Without this, small models add properties of their own.
    """
    made = dict(schema)
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(items, dict):
        made["items"] = closed(items)
    if isinstance(properties, dict):
        made["properties"] = {
            name: closed(part) if isinstance(part, dict) else part for name, part in properties.items()
        }
        required = schema.get("required", [])
        is_complete = isinstance(required, list) and all(
            isinstance(each, str) and each in properties for each in required
        )
        if is_complete and not _OF_OTHERS & schema.keys():
            made["additionalProperties"] = False
    return made


def alternatives(rules: Rules, tools: ToolUse, call: Callable[[Tool], str]) -> str:
    names = [rules.add(f"call_{index}", call(tool)) for index, tool in enumerate(tools.tools)]
    return rules.add("call", " | ".join(names))


def several(call: str, between: str, tools: ToolUse) -> str:
    return f"{call} ({between} {call})*" if tools.is_parallel else call


def _begin(begins: Iterable[str], rules: Rules) -> str:
    """Return the marker that is a token, or else the first one."""
    known = [begin for begin in begins if rules.is_token(begin)]
    return next(iter(known or begins), "")


def json_calls(syntax: JsonCalls, tools: ToolUse, rules: Rules) -> Calls:
    def call(tool: Tool) -> str:
        head = f'{{"{syntax.name_key}": {literal(tool.name)}, "{syntax.arguments_key}": '
        return f'{literal(head)} {arguments(tool, tools, rules)} "}}"'

    def body(begin: str) -> str:
        if not begin or not syntax.end:
            return f"{SPACE} {objects}"
        end = rules.marker(syntax.end)
        if rules.is_token(begin) != rules.is_token(syntax.end):
            end = f"({end})?"  # This tokenizer's model writes none.
        return f"{SPACE} {objects} {SPACE} {end}"

    objects = alternatives(rules, tools, call)
    is_list = syntax.is_list or not syntax.end
    if is_list:
        separator = "," if syntax.is_list else syntax.separator
        objects = several(objects, f"{literal(separator)} {SPACE}", tools)
    if syntax.is_list:
        objects = f'"[" {objects} "]"'
    return Calls("" if syntax.bare else _begin(syntax.begins, rules), body, is_list)


def named_calls(syntax: NamedCalls, tools: ToolUse, rules: Rules) -> Calls:
    def call(tool: Tool) -> str:
        before = rules.marker(f"{syntax.before_name.removeprefix(syntax.begin)}{tool.name}")
        number = '":" /[0-9]{1,3}/' if syntax.is_numbered else ""
        between = rules.marker(syntax.before_arguments or syntax.separator)
        after = rules.marker(f"{syntax.after_arguments}{syntax.end}")
        return f"{before} {number} {between} {arguments(tool, tools, rules)} {after}"

    def body(begin: str) -> str:
        if begin == syntax.begin:
            return one
        marked = several(f"{rules.marker(syntax.begin)} {one}", rules.marker(syntax.between), tools)
        return f"{marked} {rules.marker(syntax.section_end)}"

    one = alternatives(rules, tools, call)
    return Calls(syntax.section_begin or syntax.begin, body, bool(syntax.section_begin))


def function_calls(syntax: FunctionCalls, tools: ToolUse, rules: Rules) -> Calls:
    def value(parameter: Parameter) -> str:
        begin = literal(f"{syntax.parameter}{parameter.name}>\n")
        return f"{begin} {value_of(parameter, rules, before, syntax.parameter_end)} {SPACE}"

    def call(tool: Tool) -> str:
        if tools.is_guided(tool):
            values = in_order(parameters_of(tool), value)
        else:
            any_value = rules.text_before(before, syntax.parameter_end)
            values = f'({literal(syntax.parameter)} {KEY} ">\\n" {any_value} {SPACE})*'
        return f"{literal(f'{tool.name}>')} {SPACE} {values} {literal(syntax.function_end)}"

    def body(begin: str) -> str:
        if begin == syntax.function:
            return one
        return f"{SPACE} {literal(syntax.function)} {one} {SPACE} {rules.marker(syntax.end)}"

    before = "\n"
    one = alternatives(rules, tools, call)
    return Calls(syntax.begin, body)


def invoke_calls(syntax: InvokeCalls, tools: ToolUse, rules: Rules) -> Calls:
    def after_name(*, is_text: bool) -> str:
        return f'" {IS_TEXT}{json.dumps(is_text)}">' if syntax.tells_types else '">'

    def value(parameter: Parameter) -> str:
        begin = literal(f"{syntax.parameter}{parameter.name}{after_name(is_text=parameter.is_text)}")
        return f"{begin} {value_of(parameter, rules, '', syntax.parameter_end)} {SPACE}"

    def call(tool: Tool) -> str:
        if tools.is_guided(tool):
            values = in_order(parameters_of(tool), value)
        else:
            head = f"{literal(syntax.parameter)} {KEY} {literal(after_name(is_text=True))}"
            values = f"({head} {rules.text_before('', syntax.parameter_end)} {SPACE})*"
        begin, end = literal(f'{syntax.call * bool(syntax.section)}{tool.name}">'), literal(syntax.call_end)
        return f"{begin} {SPACE} {values} {end} {SPACE}"

    one = alternatives(rules, tools, call)
    if not syntax.section:
        return Calls(syntax.call, lambda begin: one)
    body = f"{SPACE} {several(one, '', tools)} {rules.marker(syntax.end)}"
    return Calls(syntax.begins[0], lambda begin: body, is_list=True)


def key_value_calls(syntax: KeyValueCalls, tools: ToolUse, rules: Rules) -> Calls:
    def pair(key: str, value: str) -> str:
        begin, key_end, value_begin = map(rules.marker, (syntax.key, syntax.key_end, syntax.value))
        return f"{begin} {key} {key_end} {SPACE} {value_begin} {value} {SPACE}"

    def call(tool: Tool) -> str:
        end = syntax.value_end
        if tools.is_guided(tool):
            values = in_order(
                parameters_of(tool), lambda each: pair(literal(each.name), value_of(each, rules, "", end))
            )
        else:
            values = f"({pair(KEY, rules.text_before('', end))})*"
        name = f"{literal(tool.name)} {rules.marker(syntax.after_name)}"
        return f"{name} {SPACE} {values} {rules.marker(syntax.end)}"

    def body(begin: str) -> str:
        if begin == syntax.begin:
            return one
        marked = several(f"{rules.marker(syntax.begin)} {one}", SPACE, tools)
        return f"{SPACE} {marked} {SPACE} {rules.marker(syntax.section_end)}"

    one = alternatives(rules, tools, call)
    return Calls(syntax.begins[0], body, bool(syntax.section_begin))


def value_of(parameter: Parameter, rules: Rules, before_end: str, end: str) -> str:
    if parameter.is_text:
        return text_value(rules, parameter, before_end, end)
    return f"{rules.schema(parameter.place, parameter.schema)} {rules.marker(before_end + end)}"


def python_calls(syntax: PythonCalls, tools: ToolUse, rules: Rules) -> Calls:
    def value(parameter: Parameter) -> str:
        return f"{literal(f'{parameter.name}=')} {rules.schema(parameter.place, parameter.schema)}"

    def call(tool: Tool) -> str:
        if tools.is_guided(tool):
            values = keywords(rules, parameters_of(tool), f"of_{tools.tools.index(tool)}", value)
        else:
            pair = f'{KEY} "=" {rules.schema(place_of(tool), _ANY_VALUE)}'
            values = f'({pair} ("," {SPACE} {pair})*)?'
        return f'{literal(f"{tool.name}(")} {values} ")"'

    def body(begin: str) -> str:
        end = f"({rules.marker(syntax.end)})?" if begin else ""
        return f"{SPACE} {calls} {end}"

    one = alternatives(rules, tools, call)
    calls = several(one, f'"," {SPACE}' if syntax.is_list else literal("\n"), tools)
    if syntax.is_list:
        calls = f'"[" {calls} "]"'
    return Calls("" if syntax.bare else _begin(syntax.begins, rules), body, is_list=True)
