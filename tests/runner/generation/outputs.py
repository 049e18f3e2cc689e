"""A stand-in for the engine server, whose outputs are given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from runner.engines.protocol.messages import FinishReason, Output, Submit, TokenLogProb
from runner.engines.protocol.outlet import Outlet


class Source:
    submit: Submit
    """The request that it got."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        self.submit = submit
        for output in self._outputs:
            yield output


def in_chunks(chunks: Iterable[list[int]], reason: FinishReason = "length") -> Source:
    """Return a source of tokens, each of which has a log probability: minus its id."""
    outputs = (Output(each, [TokenLogProb(-float(token)) for token in each]) for each in chunks)
    return Source(*outputs, Output([], [], reason))
