"""Parts of a body of chat completions that is made from the body of another API."""

from collections.abc import Iterable
from typing import Any

from runner.api.openai.bodies import CallArguments, ChatBody, Object, SamplingBody
from runner.api.validation import convert


def joined(content: str | Iterable[Any]) -> str | list[Object]:
    """Return a text, or parts that have one each. With images (``image_url``) return the parts of a chat."""
    if isinstance(content, str):
        return content
    parts = list(content)
    if not any(hasattr(each, "image_url") for each in parts):
        return "\n".join(each.text for each in parts)
    return [
        {"type": "image_url", "image_url": {"url": each.image_url}}
        if hasattr(each, "image_url")
        else {"type": "text", "text": each.text}
        for each in parts
    ]


def format_by(schema: Object, name: str = "output") -> Object:
    """Return a chat's field for the schema of its answer."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def call_of(call_id: str, name: str, arguments: CallArguments) -> Object:
    """Return a tool call in the form that messages of a chat have."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_named(name: object) -> Object:
    """Return a chat's reference to a tool."""
    return {"type": "function", "function": {"name": name}}


def make_chat_body(body: SamplingBody, **fields: Any) -> ChatBody:
    """Return a chat with the shared fields of ``body`` and ``fields``. Raises E1005 with the chat's field."""
    shared = {name: getattr(body, name) for name in SamplingBody.__struct_fields__}
    given = {name: value for name, value in {**shared, **fields}.items() if value is not None}
    return convert(given, ChatBody)
