"""Parts of a body of chat completions that is made from the body of another API."""

from collections.abc import Iterable
from typing import Any, Protocol

from runner.api.openai.bodies import CallArguments, ChatBody, Object, SamplingBody
from runner.api.validation import convert


class TextPart(Protocol):
    @property
    def text(self) -> str: ...


def joined(content: str | Iterable[TextPart]) -> str:
    """Return a text, or parts that have one each."""
    return content if isinstance(content, str) else "\n".join(each.text for each in content)


def format_by(schema: Object, name: str = "output") -> Object:
    """Return a chat's field for the schema of its answer."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def call_of(call_id: str, name: str, arguments: CallArguments) -> Object:
    """Return a call of a tool as a chat has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_named(name: object) -> Object:
    """Return a chat's reference to a tool."""
    return {"type": "function", "function": {"name": name}}


def make_chat_body(body: SamplingBody, **fields: Any) -> ChatBody:
    """Return a chat with the shared fields of ``body`` and ``fields``. Raises E1005 with the chat's field."""
    shared = {name: getattr(body, name) for name in SamplingBody.__struct_fields__}
    given = {name: value for name, value in {**shared, **fields}.items() if value is not None}
    return convert(given, ChatBody)
