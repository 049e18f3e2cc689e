"""The tools that an answer to a chat may call, and the form in which its template gets them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from engine.kinds import supports
from errors.api import UnsupportedField
from errors.requests import InvalidInput
from runner.api.openai.bodies import AllowedTools, ChatBody, Function, NamedTool, Tool
from runner.api.openai.guides import body_field, guide_of
from runner.chat.families import tools as families

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_MOST_NAMES = 10
"""Number of names that an error shows."""


def tool_use(body: ChatBody, engine_kind: str) -> families.ToolUse | None:
    """Return the tools that an answer may call; None if there are none.

    Raises E1005 for a choice that the other fields do not allow, and E1602 for calls that only a guide can
    enforce, on an engine that follows none.
    """
    if body.tool_choice == "none":
        return None
    tools = {each.function.name: _tool(each.function) for each in body.tools or ()}
    is_required = False
    match body.tool_choice:
        case NamedTool(function):
            tools, is_required = _some(tools, {"tool_choice.function.name": function.name}), True
        case AllowedTools(allowed):
            prefix = "tool_choice.allowed_tools.tools"
            names = {
                f"{prefix}[{at}].function.name": each.function.name for at, each in enumerate(allowed.tools)
            }
            tools, is_required = _some(tools, names), allowed.mode == "required"
        case "required":
            if not tools:
                expected = "a list of functions where tool_choice is required"
                raise InvalidInput(name="tools", expected=expected, value=body.tools)
            is_required = True
    if not tools:
        return None
    _check_guides(body, tools.values(), engine_kind, is_required=is_required)
    choice: families.ToolChoice = "required" if is_required else "auto"
    # A named tool is called exactly once, as by OpenAI.
    is_parallel = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool)
    return families.ToolUse(tuple(tools.values()), choice, is_parallel)


def callable_tools(body: ChatBody, use: families.ToolUse | None) -> list[Tool] | None:
    """Return the tools for the template: all, even if one is named, so that turns begin alike."""
    if use is None:
        return None
    if not isinstance(body.tool_choice, AllowedTools):
        return body.tools
    names = {tool.name for tool in use.tools}
    return [tool for tool in body.tools or () if tool.function.name in names]


def shown_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return tools for the chat template, as models learn them, without fields for the server."""
    return [{"type": "function", "function": _shown(each.function)} for each in tools or ()] or None


def _shown(function: Function) -> dict[str, Any]:
    description = {} if function.description is None else {"description": function.description}
    return {"name": function.name, **description, "parameters": function.parameters or _NO_ARGUMENTS}


def _tool(function: Function) -> families.Tool:
    parameters = function.parameters or _NO_ARGUMENTS
    return families.Tool(function.name, function.description or "", parameters, bool(function.strict))


def _some(tools: Mapping[str, families.Tool], names: Mapping[str, str]) -> dict[str, families.Tool]:
    """Return the tools that are named. ``names``: a tool's name by its place in the body, for errors.

    Raises E1005 for a name that no tool has.
    """
    for place, name in names.items():
        if name not in tools:
            known = [*list(tools)[:_MOST_NAMES], *(["..."] if len(tools) > _MOST_NAMES else [])]
            expected = (
                f"one of the tools ({', '.join(known)})" if tools else "left out, because there are no tools"
            )
            raise InvalidInput(name=place, expected=expected, value=name)
    return {name: tools[name] for name in names.values()}


def _check_guides(
    body: ChatBody, tools: Iterable[families.Tool], engine_kind: str, *, is_required: bool
) -> None:
    if is_required and (guide := guide_of(body, engine_kind)) is not None:
        expected = "left out, because tool_choice requires a call"
        raise InvalidInput(name=body_field(body), expected=expected, value=guide.text)
    if supports(engine_kind, "chat_guides"):
        return
    if is_required:
        choice = msgspec.to_builtins(body.tool_choice)
        remedy = "send auto or none"
        raise UnsupportedField(name="tool_choice", value=choice, engine_kind=engine_kind, remedy=remedy)
    strict = {each.name for each in tools if each.is_strict}
    for at, tool in enumerate(body.tools or ()):
        if tool.function.name in strict:
            name, remedy = f"tools[{at}].function.strict", "leave it out"
            raise UnsupportedField(name=name, value=True, engine_kind=engine_kind, remedy=remedy)
