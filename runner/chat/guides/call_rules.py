"""Rules of calls in the syntax of a family."""

from errors.requests import InvalidGuide
from runner.chat.families.family import CallSyntax
from runner.chat.families.glm import KeyValueCalls
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.qwen3_coder import FunctionCalls
from runner.chat.families.syntax.brace_calls import BraceCalls
from runner.chat.families.syntax.channel_calls import ChannelCalls
from runner.chat.families.syntax.element_calls import ElementCalls
from runner.chat.families.syntax.invoke_calls import InvokeCalls
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.keyed_calls import KeyedCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.tools import ToolUse
from runner.chat.guides.calls import (
    Calls,
    function_calls,
    invoke_calls,
    json_calls,
    key_value_calls,
    named_calls,
    python_calls,
)
from runner.chat.guides.rules import Rules
from runner.chat.guides.tagged_calls import brace_calls, channel_calls, element_calls, keyed_calls


def call_rules(syntax: CallSyntax, tools: ToolUse, rules: Rules) -> Calls:
    """Return the rules of calls. Raises E1105 for a syntax or a schema that can't be enforced."""
    match syntax:
        case JsonCalls():
            return json_calls(syntax, tools, rules)
        case NamedCalls():
            return named_calls(syntax, tools, rules)
        case FunctionCalls():
            return function_calls(syntax, tools, rules)
        case InvokeCalls():
            return invoke_calls(syntax, tools, rules)
        case KeyValueCalls():
            return key_value_calls(syntax, tools, rules)
        case PythonCalls():
            return python_calls(syntax, tools, rules)
        case KeyedCalls():
            return keyed_calls(syntax, tools, rules)
        case BraceCalls():
            return brace_calls(syntax, tools, rules)
        case ChannelCalls():
            return channel_calls(syntax, tools, rules)
        case ElementCalls():
            return element_calls(syntax, tools, rules)
    reason = "the form of this model's calls can't be enforced; use tool_choice auto without strict tools"
    raise InvalidGuide(guide_type="chat_form", reason=reason)
