"""A call knows the client's key, by either header, and its priority is bounded by that key."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from errors.requests import InvalidInput
from runner.api.call import begin_call, call_of
from runner.api.middleware.keys import RequireKey
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.settings.api_keys import APIKeys

LOWEST = {"": -1, "batch": 5}


def key_of(*headers: tuple[bytes, bytes]) -> str | None:
    """Return the key that the application behind the middleware sees; None if the call was refused."""
    found: list[str] = []
    scope: dict[str, Any] = {"type": "http", "path": "/v1/completions", "headers": list(headers)}

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(call_of(scope).api_key)

    async def receive() -> Message:
        raise AssertionError("nothing of the body is read")

    async def send(message: Message) -> None:
        pass

    begin_call(scope, "id")
    asyncio.run(RequireKey(application, APIKeys(("first", "batch")))(scope, receive, send))
    return found[0] if found else None


def test_a_call_knows_its_key() -> None:
    assert key_of((b"authorization", b"Bearer batch")) == "batch"
    assert key_of((b"x-api-key", b"first"), (b"authorization", b"Bearer other")) == "first"
    assert key_of((b"authorization", b"Bearer other")) is None
    assert key_of() is None


@pytest.mark.parametrize(
    ("asked", "key", "priority"), [(None, "", None), (-1, "first", -1), (None, "batch", 5), (6, "batch", 6)]
)
def test_a_request_has_the_priority_that_its_key_may_ask_for(
    asked: int | None, key: str, priority: int | None
) -> None:
    request = GenerationRequest("hi", 1, 0, (), Sampling(), priority=asked)
    assert request.with_priority(LOWEST, key).priority == priority
    refused = GenerationRequest("hi", 1, 0, (), Sampling(), priority=-2)
    with pytest.raises(InvalidInput, match=re.escape("(MIN_PRIORITY), but is -2")):
        refused.with_priority(LOWEST, key)
