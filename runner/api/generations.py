"""The texts of one request while they are generated: what has arrived of all of them, batch by batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from errors.coded_error import CodedError
from runner.api.openai.answers import Usage
from runner.api.openai.requests import Order
from runner.engines.protocol.messages import TokenLogProb
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest

_FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length"}
"""OpenAI's words for ours: a text that ended by itself or by a stop sequence has stopped."""


@dataclass(frozen=True)
class Piece:
    """What came of one text; the last one has the finish reason."""

    index: int
    text: str
    finish_reason: str | None = None
    log_probs: list[tuple[int, TokenLogProb]] = field(default_factory=list)
    """Of the tokens that came, by their ids; empty where they were not asked for."""


class Texts:
    """The texts of some orders. Iterate ``batches`` once; then ``usage`` is true."""

    def __init__(self, orders: Sequence[Order], generate: Callable[[GenerationRequest], Generation]) -> None:
        self._orders = orders
        self._generations = [[generate(request) for request in order.requests()] for order in orders]

    def usage(self) -> Usage:
        """A prompt counts once, however many texts were made of it."""
        prompt_tokens = sum(generations[0].input_token_count for generations in self._generations)
        output_tokens = sum(each.output_token_count for group in self._generations for each in group)
        return Usage(prompt_tokens, output_tokens, prompt_tokens + output_tokens)

    def fail(self, error: CodedError) -> None:
        """What is not done has failed; whoever iterates ends it."""
        for generation in itertools.chain.from_iterable(self._generations):
            if generation.finish_reason is None:
                generation.fail(error)

    async def batches(self) -> AsyncGenerator[list[Piece], None]:
        """All pieces that have arrived, each time. Raises a CodedError."""
        sources = [
            _pieces(index, order.echo, generation)
            for index, (order, generation) in enumerate(
                (order, generation)
                for order, group in zip(self._orders, self._generations, strict=True)
                for generation in group
            )
        ]
        if len(sources) == 1:
            async with aclosing(sources[0]) as pieces:
                async for piece in pieces:
                    yield [piece]
            return
        async with aclosing(_merged(sources)) as batches:
            async for batch in batches:
                yield batch


async def _pieces(index: int, echo: str, generation: Generation) -> AsyncGenerator[Piece, None]:
    async with aclosing(generation.text()) as texts:
        async for text in texts:
            yield Piece(index, echo + text, None, generation.take_log_probs())
            echo = ""
    yield Piece(index, echo, _FINISH_REASONS[str(generation.finish_reason)], generation.take_log_probs())


async def _merged(sources: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[list[Piece], None]:
    """What any of the sources gave. The first error of one ends all."""
    arrived: list[Piece] = []
    wake = asyncio.Event()

    async def pump(source: AsyncGenerator[Piece, None]) -> None:
        async with aclosing(source) as pieces:
            async for piece in pieces:
                arrived.append(piece)
                wake.set()

    pumps = [asyncio.ensure_future(pump(source)) for source in sources]
    for each in pumps:
        each.add_done_callback(lambda _: wake.set())
    try:
        running = set(pumps)
        while running:
            await wake.wait()
            wake.clear()
            batch, arrived[:] = list(arrived), []
            if batch:
                yield batch
            for task in [task for task in running if task.done()]:
                running.discard(task)
                task.result()
        if arrived:
            yield arrived
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)
