"""All texts of one call while they are generated, in batches of the pieces that have arrived."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from errors.coded_error import CodedError
from runner.chat.families.parts import Part
from runner.engines.protocol.messages import SEEDS, FinishReason
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest
from runner.generation.text_decoder import ReportedToken


@dataclass(frozen=True)
class RemoteImage:
    """An image to fetch. ``place``: its part of the messages, for errors."""

    place: str
    url: str


class PromptRequest(msgspec.Struct, frozen=True, eq=False):
    """One prompt with its parameters, of which ``count`` texts are wanted."""

    request: GenerationRequest
    count: int
    echo: str = ""
    """The beginning of each text."""
    images: Sequence[bytes | RemoteImage] = ()
    """Images that the request gets once all are fetched."""

    def per_text(self) -> list[GenerationRequest]:
        """Return a request for each text: the seeds follow each other."""
        if self.count == 1:
            return [self.request]
        first = self.request.sampling
        seeds = (((first.seed or 0) + number) % SEEDS for number in range(self.count))
        return [replace(self.request, sampling=replace(first, seed=seed)) for seed in seeds]


class Piece(msgspec.Struct, frozen=True):
    """A piece of one text; the last piece has the finish reason."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    log_probs: list[ReportedToken] = []
    """Log probabilities of its tokens; empty unless the request asked for them."""
    parts: list[Part] = []
    """Parts in place of ``text``, if the request has an answer form."""
    stop_sequence: str | None = None
    """Stop sequence that ended the text; in the last piece."""


class Generations:
    """The texts of a call. Iterate ``batches`` once; counts are of the tokens so far."""

    def __init__(self) -> None:
        self._firsts: list[Generation] = []
        self._all: list[Generation] = []
        self._echoes: list[str] = []

    async def add(
        self, requests: Sequence[PromptRequest], generate: Callable[[GenerationRequest], Generation]
    ) -> None:
        for number, request in enumerate(requests):
            if number:
                await asyncio.sleep(0)  # Other calls have their turn, as there may be a thousand.
            texts = [generate(each) for each in request.per_text()]
            self._firsts.append(texts[0])
            self._all += texts
            self._echoes += [request.echo] * request.count

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens. A prompt counts once, however many texts it has."""
        return sum(each.input_token_count for each in self._firsts)

    @property
    def cached_tokens(self) -> int | None:
        """Number of cached prompt tokens; None if the engine does not know."""
        known = [each.cached_token_count for each in self._firsts if each.cached_token_count is not None]
        return sum(known) if known else None

    @property
    def output_tokens(self) -> int:
        return sum(each.output_token_count for each in self._all)

    @property
    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens; None if the answers are plain text."""
        if not any(each.has_parts for each in self._all):
            return None
        return sum(each.reasoning_token_count for each in self._all)

    @property
    def drafted(self) -> tuple[int, int] | None:
        """Numbers of draft tokens that were accepted and rejected; None if the engine does not know."""
        known = [each.drafted for each in self._all if each.drafted is not None]
        return (sum(each[0] for each in known), sum(each[1] for each in known)) if known else None

    @property
    def are_over(self) -> bool:
        return all(each.is_over for each in self._all)

    def fail(self, error: CodedError) -> None:
        """Mark each unfinished text as failed. The caller ends the iteration."""
        for generation in self._all:
            if not generation.is_over:
                generation.fail(error)

    def batches(self, outlet: Outlet[list[Piece]] | None = None) -> AsyncGenerator[list[Piece], None]:
        """Yield all pieces that have arrived. Raises a CodedError. ``outlet``: for the pieces of one text."""
        if len(self._all) == 1:
            return _pieces(0, self._echoes[0], self._all[0], outlet)
        return _merged(
            [_pieces(*each) for each in zip(itertools.count(), self._echoes, self._all, strict=False)]
        )


async def _pieces(
    index: int, echo: str, generation: Generation, outlet: Outlet[list[Piece]] | None = None
) -> AsyncGenerator[list[Piece], None]:
    """Yield the pieces of one text: one at a time, and the last ones together."""

    def piece_of(chunk: Any) -> Piece:
        nonlocal echo
        log_probs = generation.take_log_probs()
        if generation.has_parts:
            return Piece(index, "", None, log_probs, chunk)
        text, echo = echo + chunk, ""
        return Piece(index, text, None, log_probs)

    of_chunks: Outlet[Any] | None = None
    if outlet is not None:
        put = outlet.put
        of_chunks = Outlet(outlet.is_ready, lambda chunk: put([piece_of(chunk)]))
    last: list[Piece] = []
    generated = generation.parts(of_chunks) if generation.has_parts else generation.text(of_chunks)
    async with aclosing(generated) as chunks:
        async for chunk in chunks:
            last.append(piece_of(chunk))
            if not generation.is_over:
                yield last
                last = []
    reason, log_probs = generation.finish_reason, generation.take_log_probs()
    yield [*last, Piece(index, echo, reason, log_probs, stop_sequence=generation.stop_sequence)]


async def _merged(sources: Sequence[AsyncGenerator[list[Piece], None]]) -> AsyncGenerator[list[Piece], None]:
    """Yield the pieces of all sources. The first error of one ends all."""
    arrived: list[Piece] = []
    wake = asyncio.Event()

    async def pump(source: AsyncGenerator[list[Piece], None]) -> None:
        async with aclosing(source) as batches:
            async for pieces in batches:
                arrived.extend(pieces)
                wake.set()

    pumps: list[asyncio.Task[None]] = []
    try:
        for source in sources:
            pumps.append(asyncio.create_task(pump(source)))
            pumps[-1].add_done_callback(lambda _: wake.set())
            await asyncio.sleep(0)  # Other calls have their turn, as each text may be tokenized here.
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
        if pumps:
            await asyncio.wait(pumps)
