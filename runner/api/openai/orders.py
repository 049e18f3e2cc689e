"""The order of a chat, made from the body of another API."""

from __future__ import annotations

from typing import Any

from runner.api.openai.bodies import ChatBody, SamplingBody
from runner.api.validation import convert


def chat_order(body: SamplingBody, **fields: Any) -> ChatBody:
    """A chat with the fields that all bodies have, and ``fields``. Raises E1005 with the chat's field."""
    shared = {name: getattr(body, name) for name in SamplingBody.__struct_fields__}
    given = {name: value for name, value in {**shared, **fields}.items() if value is not None}
    return convert(given, ChatBody)
