"""Conversion of the body of POST /v1/responses into a body of chat completions."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from errors.api import UnknownField
from errors.requests import InvalidInput
from runner.api.error_response import Fields
from runner.api.openai.bodies import MAX_TOOL_NAME, AnyObject, ChatBody, Object, ToolName
from runner.api.openai.to_chat import call_of, format_by, function_named, joined, make_chat_body
from runner.api.responses import bodies
from runner.api.validation import convert
from runner.chat.turns import combined

_NAMES = (
    (r"^max_tokens", "max_output_tokens"),
    (r"^messages\[\d+\]\.tool_call_id", "input.call_id"),
    (r"^messages\S*", "input"),
    (r"^response_format.*", "text.format"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^(tools\[\d+\]|tool_choice)\.function", r"\1"),
    (r"^tool_choice\.allowed_tools(\.tools\[\d+\])?(\.function)?", r"tool_choice\1"),
)
"""Fields of the chat's body by their names here, as regular expressions."""
_INCLUDED_WITHOUT_EFFECT = ("reasoning.encrypted_content",)
_NOT_STORED = "send the whole conversation as input, because this server stores no responses"
_REFUSED = {
    "previous_response_id": _NOT_STORED,
    "conversation": _NOT_STORED,
    "prompt": "send its text as instructions and input",
    "context_management": "leave it out, and shorten the input yourself",
    "moderation": "leave it out",
}
_OWN_TOOLS_ONLY = "function, because this server runs no tools itself"


def fields_of(body: bodies.ResponsesBody) -> Fields:
    """Return the fields' names for errors."""
    has_format = body.text is not None and body.text.format is not None
    others = "tools" if body.tools else "thinking_token_budget"
    return Fields("input", "text.format" if has_format else others, _NAMES)


def chat_body(body: bodies.ResponsesBody) -> ChatBody:
    """Convert the body. Raises E1005 and E1601 with the field."""
    _check_supported(body)
    return make_chat_body(
        body,
        messages=_messages(body),
        max_tokens=body.max_output_tokens,
        response_format=_response_format(body),
        tools=None if body.tools is None else list(_tools(body.tools)),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        thinking_token_budget=body.thinking_token_budget,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _check_supported(body: bodies.ResponsesBody) -> None:
    for name, remedy in _REFUSED.items():
        if getattr(body, name) is not None:
            raise UnknownField(name=name, remedy=remedy)
    if body.background:
        raise InvalidInput(name="background", expected="false, as nothing is stored", value=True)
    for at, each in enumerate(body.include or ()):
        if each not in _INCLUDED_WITHOUT_EFFECT:
            raise InvalidInput(name=f"include[{at}]", expected=_INCLUDED_WITHOUT_EFFECT[0], value=each)


def _response_format(body: bodies.ResponsesBody) -> Object | None:
    match body.text and body.text.format:
        case AnyObject():
            return {"type": "json_object"}
        case bodies.NamedSchema(name=name, schema=schema):
            return format_by(schema, name)
    return None


def namespaces(body: bodies.ResponsesBody) -> dict[str, tuple[str, str]]:
    """Return namespace and name of valid functions, by the name that the model learns."""
    found: dict[str, tuple[str, str]] = {}
    for tool in body.tools or ():
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": [*functions]} if (
                len(namespace) <= MAX_TOOL_NAME  # It is part of each name.
            ):
                for function in functions:
                    if isinstance(function, dict) and isinstance(name := function.get("name"), str):
                        found[_full_name(namespace, name)] = (namespace, name)
    return found


def _full_name(namespace: str | None, name: str) -> str:
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


def _tools(tools: list[Object]) -> Iterator[Object]:
    for at, tool in enumerate(tools):
        if tool.get("type") != "namespace":
            yield _tool(tool, f"tools[{at}]")
            continue
        space = convert(tool, bodies.Namespace, f"tools[{at}]")
        for index, each in enumerate(space.tools):
            yield _tool(each, f"tools[{at}].tools[{index}]", space.name)


def _tool(tool: Object, place: str, namespace: str | None = None) -> Object:
    if tool.get("type") != "function":
        raise InvalidInput(name=f"{place}.type", expected=_OWN_TOOLS_ONLY, value=tool.get("type"))
    function = convert(tool, bodies.FunctionTool, place)
    # NOTE: here, as the chat's body numbers the functions of all namespaces.
    function.name = convert(_full_name(namespace, function.name), ToolName, f"{place}.name")
    return {"type": "function", "function": msgspec.structs.asdict(function)}


def _tool_choice(choice: str | Object | None) -> str | Object | None:
    match choice:
        case {"type": "function", "name": name}:
            return function_named(name)
        case {"type": "allowed_tools", "mode": mode, "tools": [*tools]}:
            names = [function_named(each.get("name") if isinstance(each, dict) else None) for each in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
        case dict():
            expected = "auto, none, required, or of type function (with a name) or allowed_tools"
            raise InvalidInput(name="tool_choice", expected=expected, value=choice)
    return choice


def _messages(body: bodies.ResponsesBody) -> list[Object]:
    messages = _Messages()
    if body.instructions:
        messages.all.append({"role": "system", "content": body.instructions})
    if not isinstance(body.input, list):
        messages.all.append({"role": "user", "content": body.input})
    elif not body.input:
        raise InvalidInput(name="input", expected="a text, or a list of at least one item", value=[])
    else:
        for at, item in enumerate(body.input):
            messages.add(item, f"input[{at}]")
    return combined(messages.all)


class _Messages:
    """Messages of a chat: consecutive items of the assistant are one message."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def add(self, item: Object, place: str) -> None:
        kind = "message" if item.get("type") is None else item["type"]
        if not isinstance(kind, str) or kind not in bodies.ITEMS:
            raise InvalidInput(name=f"{place}.type", expected=" or ".join(bodies.ITEMS), value=kind)
        match convert(item, bodies.ITEMS[kind], place):
            case bodies.MessageItem("assistant", content):
                self._assistant("content", "tool_calls")["content"] = joined(content)
            case bodies.MessageItem("system" | "developer", content):
                self.all.append({"role": "system", "content": joined(content)})
            case bodies.MessageItem(role, content):
                self.all.append({"role": role, "content": joined(content)})
            case bodies.FunctionCall() as call:
                name = _full_name(call.namespace, call.name)
                calls = self._assistant().setdefault("tool_calls", [])
                calls.append(call_of(call.call_id, name, call.arguments))
            case bodies.FunctionCallOutput(call_id, output):
                self.all.append({"role": "tool", "tool_call_id": call_id, "content": joined(output)})
            case bodies.ReasoningItem(summary, written):
                message = self._assistant("content", "tool_calls", "reasoning_content")
                message["reasoning_content"] = joined(written or summary)

    def _assistant(self, *later: str) -> dict[str, Any]:
        """Return the assistant's last message; a new one if it has one of the fields that come later."""
        last: Mapping[str, Any] = self.all[-1] if self.all else {}
        if last.get("role") != "assistant" or any(name in last for name in later):
            self.all.append({"role": "assistant"})
        return self.all[-1]
