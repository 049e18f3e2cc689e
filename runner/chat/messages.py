"""The messages of a chat, validated and in the form that chat templates expect."""

from __future__ import annotations

import json
import re
from typing import Any

from errors.requests import InvalidInput

Message = dict[str, Any]

_ROLE = re.compile(r"[\w.-]{1,64}")


def checked_messages(messages: object) -> list[Message]:
    """The messages as templates expect them: without None, text parts joined, arguments of tool calls parsed.

    Raises E1005 naming the first invalid message or content.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidInput(name="messages", expected="a list of at least one message", value=messages)
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]


def with_system_prompt(messages: list[Message], system_prompt: str) -> list[Message]:
    """``messages``, with the server's system prompt at the front if they have none."""
    if messages[0]["role"] in ("system", "developer") or not system_prompt:
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def _checked(message: object, place: str) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidInput(name=place, expected="an object with a role and content", value=message)
    # NOTE: templates make control tokens of roles.
    if not _ROLE.fullmatch(message["role"]):
        expected = "a name of letters, digits and _.-"
        raise InvalidInput(name=f"{place}.role", expected=expected, value=message["role"])
    given = {key: value for key, value in message.items() if value is not None}
    if "content" in given:
        given["content"] = _text_content(given["content"], f"{place}.content")
    elif "tool_calls" not in given:
        raise InvalidInput(name=f"{place}.content", expected="a text", value=None)
    if "tool_calls" in given:
        given["tool_calls"] = _tool_calls(given["tool_calls"], f"{place}.tool_calls")
    return given


def _text_content(content: object, place: str) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(name=place, expected="a text or a list of text parts", value=content)
    return "\n".join(_text_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _text_part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(text, str):
        value = part if kind is None or kind == "text" else kind
        raise InvalidInput(name=place, expected='of type "text", as the model takes no other', value=value)
    return text


def _tool_calls(calls: object, place: str) -> list[Any]:
    """NOTE: OpenAI's clients send the arguments as JSON in a string; templates expect the parsed value."""
    if not isinstance(calls, list):
        raise InvalidInput(name=place, expected="a list", value=calls)
    return [_tool_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, place: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidInput(name=place, expected="an object with a function", value=call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function = {**function, "arguments": json.loads(arguments or "{}")}
        except (ValueError, RecursionError) as exc:
            name = f"{place}.function.arguments"
            raise InvalidInput(name=name, expected="JSON", value=arguments) from exc
    return {**call, "function": function}
