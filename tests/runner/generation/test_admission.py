"""Requests that are sent again after the engine was away. The engines are stand-ins."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from errors import find_in_text
from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import PromptTooLong
from errors.triton import ServerStopping, TritonUnavailable
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outlet
from runner.generation.admission import Admission

CRASHED = EngineCrashed(engine_kind="paced", reason="it ended", was_ready=True)
NOT_READY = EngineCrashed(engine_kind="paced", reason="it is not ready yet", was_ready=False)
AS_TEXT = find_in_text(str(NOT_READY))
"""The error as it comes by Triton's HTTP API, without facts."""
assert AS_TEXT is not None

SUBMIT = Submit(0, [5], 3)


class StandInEngine:
    """Answers each request by the next of ``attempts``: an error, or a token and then an error or the end."""

    def __init__(self, *attempts: CodedError | tuple[int, CodedError | None]) -> None:
        self._attempts = list(attempts)
        self.count = 0
        self.is_away = False

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        self.count += 1
        attempt = self._attempts.pop(0)
        if isinstance(attempt, CodedError):
            raise attempt
        token, error = attempt
        yield Output([token], finish_reason=None if error else "length")
        if error is not None:
            raise error

    def end_all(self) -> None:
        pass

    async def is_answering(self) -> bool:
        return not self.is_away


async def ask(engine: StandInEngine) -> list[int]:
    return [token async for output in Admission(engine).generate(SUBMIT) for token in output.tokens]


@pytest.mark.parametrize(
    ("attempts", "num_sent"),
    [
        ((CRASHED, (7, None)), 2),
        ((TritonUnavailable(reason="gone"), (7, None)), 2),
        ((AS_TEXT, (7, None)), 2),
        ((CRASHED, CRASHED), 2),
        ((NOT_READY,), 1),
        ((PromptTooLong(prompt_tokens=3, max_input_tokens=2),), 1),
        (((7, CRASHED),), 1),
    ],
)
async def test_a_request_without_a_token_is_sent_once_more_if_that_may_help(
    attempts: Any, num_sent: int
) -> None:
    engine = StandInEngine(*attempts, (8, None))
    if isinstance(attempts[-1], CodedError) or attempts[-1][1]:
        with pytest.raises(CodedError):
            await ask(engine)
    else:
        assert await ask(engine) == [7]
    assert engine.count == num_sent


async def test_a_guard_that_refuses_ends_new_requests_with_e2110_and_does_not_ask_the_engine() -> None:
    engine = StandInEngine((7, None))
    admission = Admission(engine)
    admission.refuse("it was asked to")
    with pytest.raises(ServerStopping, match="it was asked to"):
        await anext(admission.generate(SUBMIT))
    assert engine.count == 0


@pytest.mark.parametrize("error", [CRASHED, TritonUnavailable(reason="gone")])
async def test_what_the_end_of_the_grace_period_cuts_is_e2110(error: CodedError) -> None:
    admission = Admission(StandInEngine((7, error)))
    outputs = admission.generate(SUBMIT)
    await anext(outputs)
    admission.end_all("it was asked to")
    with pytest.raises(ServerStopping):
        await anext(outputs)
