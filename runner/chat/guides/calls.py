"""The rules of calls, for each syntax that families have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from errors.requests import InvalidGuide
from runner.chat.families.family import CallSyntax
from runner.chat.families.json_calls import JsonCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.rules import SPACE, Rules, literal


@dataclass(frozen=True)
class Calls:
    """Expressions of a grammar."""

    begin: str
    """The marker before calls that the model is made to write; empty: there is none."""
    body: Callable[[str], str]
    """What follows a marker before calls, or an empty one: one call, or several if the syntax has a list."""
    is_list: bool = False


def call_rules(syntax: CallSyntax, tools: ToolUse, rules: Rules) -> Calls:
    """Raises E1105 for a syntax or a schema whose calls can't be enforced."""
    if isinstance(syntax, JsonCalls):
        return _json_calls(syntax, tools, rules)
    reason = "the form of this model's calls can't be enforced; use tool_choice auto without strict tools"
    raise InvalidGuide(guide_type="chat_form", reason=reason)


def _json_calls(syntax: JsonCalls, tools: ToolUse, rules: Rules) -> Calls:
    call = _alternatives(rules, tools, lambda tool: _object(syntax, tool, tools, rules))
    is_list = syntax.is_list or not syntax.end
    more = f" ({literal(syntax.separator)} {SPACE} {call})*" if is_list and tools.is_parallel else ""
    objects = f'"[" {call}{more} "]"' if syntax.is_list else f"{call}{more}"

    def body(begin: str) -> str:
        if not begin or not syntax.end:
            return f"{SPACE} {objects}"
        end = rules.marker(syntax.end)
        if rules.is_token(begin) != rules.is_token(syntax.end):
            end = f"({end})?"  # This tokenizer's model writes none.
        return f"{SPACE} {objects} {SPACE} {end}"

    return Calls("" if syntax.bare else _begin(syntax.begins, rules), body, is_list)


def _begin(begins: Iterable[str], rules: Rules) -> str:
    """The marker that is a token, or else the first one."""
    known = [begin for begin in begins if rules.is_token(begin)]
    return next(iter(known or begins), "")


def _alternatives(rules: Rules, tools: ToolUse, call: Callable[[Tool], str]) -> str:
    names = [rules.add(f"call_{index}", call(tool)) for index, tool in enumerate(tools.tools)]
    return rules.add("call", " | ".join(names))


def _object(syntax: JsonCalls, tool: Tool, tools: ToolUse, rules: Rules) -> str:
    head = f'{{"{syntax.name_key}": {literal(tool.name)}, "{syntax.arguments_key}": '
    return f'{literal(head)} {_arguments(tool, tools, rules)} "}}"'


def _arguments(tool: Tool, tools: ToolUse, rules: Rules) -> str:
    """An object by the tool's schema, or any object if nothing requires the schema."""
    is_strict = tools.choice == "required" or tool.is_strict
    schema = {"type": "object", **tool.parameters} if is_strict else {"type": "object"}
    return rules.schema(f"the parameters of the tool {tool.name}", schema)
