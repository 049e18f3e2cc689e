"""Messages of a chat, validated and in the form that chat templates expect."""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from errors.requests import ImagesUnsupported, InvalidInput

Message = dict[str, Any]

_ROLE = re.compile(r"[\w.-]{1,64}")
_ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of OpenAI's API."""
_MEANT = {
    **dict.fromkeys(("human", "customer", "person"), "user"),
    **dict.fromkeys(("ai", "model", "bot", "chatbot", "gpt", "agent"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython", "tool_response", "tool_result"), "tool"),
    **dict.fromkeys(("instructions", "root"), "system"),
}
"""Roles of other formats, and the OpenAI role that each means."""
_SIMILARITY = 0.6
"""Similarity by difflib above which one role alone is suggested for another."""
_MOST_IDS = 10
"""Number of ids that an error shows."""
IMAGE_PARTS = ("image_url", "input_image", "image")
"""Types of parts that are images in some API."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of what an assistant reasoned, each known to some clients and templates."""


def checked_messages(messages: object, knows_role: Callable[[str], bool]) -> list[Message]:
    """Return the messages, each with a text as content except beside calls.

    None is left out, text parts are joined, arguments of tool calls parsed. Reasoning has all its names, and
    results of tools have the tool's name. ``knows_role``: whether the template knows a role; ``developer`` is
    ``system`` to one that does not. Raises E1005 naming the first invalid message or content.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidInput(name="messages", expected="a list of at least one message", value=messages)
    checked = [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]
    _check_roles(checked, knows_role)
    _check_results(checked)
    return checked


def with_system_prompt(messages: list[Message], system_prompt: str) -> list[Message]:
    """Put the server's system prompt at the front of ``messages`` if they have none."""
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
    given = _sent(message)
    # NOTE: what an assistant answered may be nothing: a client sends it back as it came.
    if message["role"] != "assistant" and "content" not in given:
        raise InvalidInput(name=f"{place}.content", expected="a text", value=None)
    if "function_call" in given:
        expected = "left out: send tool_calls, which has replaced it"
        raise InvalidInput(name=f"{place}.function_call", expected=expected, value=given["function_call"])
    if "refusal" in given:  # It stands in place of the content.
        given.setdefault("content", given.pop("refusal"))
    if "content" in given:
        given["content"] = _text_content(given["content"], f"{place}.content")
    if "tool_calls" in given:
        given["tool_calls"] = _tool_calls(given["tool_calls"], f"{place}.tool_calls")
    if not given.get("tool_calls"):
        given.pop("tool_calls", None)
        given.setdefault("content", "")
    elif not given.get("content"):
        given.pop("content", None)
    return given if given["role"] != "assistant" else {**given, **_reasoning(given, place)}


def _check_roles(messages: list[Message], knows_role: Callable[[str], bool]) -> None:
    """Raise E1005 for a role that is neither OpenAI's nor known to the template."""
    for index, message in enumerate(messages):
        role = message["role"]
        if (role in _ROLES and role != "developer") or knows_role(role):
            continue
        if role != "developer":
            raise InvalidInput(name=f"messages[{index}].role", expected=_expected_role(role), value=role)
        message["role"] = "system"


def _expected_role(role: str) -> str:
    name = role.lower()
    similar = difflib.get_close_matches(name, _ROLES, n=1, cutoff=_SIMILARITY)
    roles = f"{', '.join(_ROLES[:-1])} or {_ROLES[-1]}"
    meant = _MEANT.get(name) or next(iter(similar), None)
    return f"{roles} (did you mean {meant}?)" if meant else roles


def _reasoning(message: Message, place: str) -> dict[str, str]:
    """Return what an assistant reasoned, by all its names."""
    given = next((name for name in REASONING if name in message), None)
    if given is None:
        return {}
    text = message[given]
    if not isinstance(text, str):
        raise InvalidInput(name=f"{place}.{given}", expected="a text", value=text)
    # NOTE: the template of gpt-oss, which reads ``thinking``, refuses it beside content and calls.
    is_refused = message.get("content") and "tool_calls" in message
    return dict.fromkeys(REASONING[:-1] if is_refused else REASONING, text)


def _check_results(messages: list[Message]) -> None:
    """Give each result its tool's name, which some templates write. Raises E1005 for an unknown id."""
    names: dict[str | None, str] = {}
    for index, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            id_ = call.get("id")
            names[id_ if isinstance(id_, str) else None] = call["function"]["name"]
        called = message.get("tool_call_id")
        if message["role"] != "tool" or not isinstance(called, str):
            continue
        if called in names:
            message.setdefault("name", names[called])
        elif None not in names:
            expected = f"the id of a call in an earlier assistant message{_known(names)}"
            raise InvalidInput(name=f"messages[{index}].tool_call_id", expected=expected, value=called)


def _known(ids: Iterable[str | None]) -> str:
    shown = ", ".join(str(each) for each in islice(ids, _MOST_IDS))
    return f" ({shown})" if shown else ", of which there is none"


def _text_content(content: object, place: str) -> str:
    """Return a text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(name=place, expected="a text or a list of text parts", value=content)
    return "\n".join(_text_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _text_part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
    if kind in IMAGE_PARTS:
        remedy = "send text alone, or the message to an endpoint of the HTTP API that generates text"
        raise ImagesUnsupported(name=place, reason="only text is taken here", remedy=remedy)
    if kind not in ("text", "refusal"):
        value = part if kind is None else kind
        expected = 'of type "text", or "image_url" for a model with images'
        raise InvalidInput(name=place, expected=expected, value=value)
    if not isinstance(text, str):
        raise InvalidInput(name=f"{place}.{kind}", expected="a text", value=text)
    return text


def _tool_calls(calls: object, place: str) -> list[Any]:
    """Check calls. OpenAI's clients send arguments as JSON in a string; templates expect the value."""
    if not isinstance(calls, list):
        raise InvalidInput(name=place, expected="a list", value=calls)
    return [_tool_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, place: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidInput(name=place, expected="an object with a function", value=call)
    try:
        arguments = _arguments(function.get("arguments"))
    except RecursionError as exc:
        name = f"{place}.function.arguments"
        raise InvalidInput(name=name, expected="nested less deeply", value=function["arguments"]) from exc
    if not isinstance(function.get("name"), str):
        raise InvalidInput(name=f"{place}.function.name", expected="a text", value=function.get("name"))
    return {**_sent(call), "function": {**_sent(function), "arguments": arguments}}


def _sent(fields: Message) -> Message:
    return {key: value for key, value in fields.items() if value is not None}


def _arguments(given: Any) -> dict[str, Any] | str:
    """Return the arguments of a call as an object. Raises RecursionError.

    If they are no JSON object, return the text that the model wrote, which may be invalid or cut off.
    """
    value = given or {}
    for _ in range(2):  # Some clients write JSON in JSON.
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else {}
            except ValueError:
                break
    if value in (None, []):
        return {}
    return value if isinstance(value, dict) else given if isinstance(given, str) else json.dumps(given)
