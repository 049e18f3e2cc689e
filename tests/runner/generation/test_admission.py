"""Which requests are sent again after Triton or the engine was away. Their transports are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from runner.engines.protocol.events import Event

from errors import find_in_text
from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import PromptTooLong
from errors.triton import TritonUnavailable
from runner.generation.admission import RequestGuard

CRASHED = EngineCrashed(engine_kind="paced", reason="it ended", was_ready=True)
NOT_READY = EngineCrashed(engine_kind="paced", reason="it is not ready yet", was_ready=False)
AS_TEXT = find_in_text(str(NOT_READY))
"""As it comes through Triton's HTTP API, without facts."""
assert AS_TEXT is not None


class Transport:
    """Answers each request by the next of ``attempts``: an error, or a token and then an error or the end."""

    def __init__(self, *attempts: CodedError | tuple[int, CodedError | None]) -> None:
        self._attempts = list(attempts)
        self.count = 0

    async def generate(
        self, inputs: Mapping[str, Any], headers: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        self.count += 1
        attempt = self._attempts.pop(0)
        if isinstance(attempt, CodedError):
            raise attempt
        token, error = attempt
        yield [Event(output_ids=token, finish_reason=None if error else "length")]
        if error is not None:
            raise error

    def end_all(self) -> None:
        pass

    async def is_slot_answering(self) -> bool:
        return True


def ask(transport: Transport) -> list[int]:
    async def tokens() -> list[int]:
        guard = RequestGuard(transport, transport)
        return [token async for events in guard.generate({}) for event in events for token in event.tokens]

    return asyncio.run(tokens())


@pytest.mark.parametrize("error", [CRASHED, TritonUnavailable(reason="gone"), AS_TEXT])
def test_a_request_without_a_token_is_sent_once_more(error: CodedError) -> None:
    transport = Transport(error, (7, None))
    assert ask(transport) == [7]
    assert transport.count == 2


@pytest.mark.parametrize(
    "attempts", [(NOT_READY,), (PromptTooLong(prompt_tokens=3, max_input_tokens=2),), ((7, CRASHED),)]
)
def test_a_request_is_not_sent_again_if_that_would_not_help_or_could_differ(attempts: Any) -> None:
    transport = Transport(*attempts, (8, None))
    with pytest.raises(CodedError):
        ask(transport)
    assert transport.count == 1


def test_a_request_is_sent_again_only_once() -> None:
    transport = Transport(CRASHED, CRASHED, (8, None))
    with pytest.raises(EngineCrashed):
        ask(transport)
    assert transport.count == 2


def test_a_triton_known_to_be_down_is_e2105_with_the_reason_and_not_asked() -> None:
    async def run(transport: Transport) -> None:
        guard = RequestGuard(transport, transport, down_reason=lambda: "it ended (exit code 1)")
        with pytest.raises(TritonUnavailable, match=r"\(it ended \(exit code 1\)\)"):
            await anext(guard.generate({}))

    transport = Transport((7, None))
    asyncio.run(run(transport))
    assert transport.count == 0
