"""A stand-in for the engine server, whose outputs are given, and generations on it."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from tokenizers import Tokenizer

from runner.chat.families.family import Family
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import FinishReason, Output, Sampling, Submit, TokenLogProb
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing


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


def model_of(
    tokenizer: Tokenizer, end_ids: tuple[int, ...] = (0,), family: Family | None = None
) -> ModelFacts:
    tokenizing = Tokenizing(tokenizer, max_bytes=1000, max_tokens=63)
    return ModelFacts(tokenizing, end_ids, end_ids[0], 4096, 63, ChatTemplate({}, {}), family)


def request_of(**fields: Any) -> GenerationRequest:
    usual = {"prompt": "hi", "max_tokens": 60, "min_tokens": 0, "stop_sequences": ()}
    return GenerationRequest(**{**usual, "sampling": Sampling(temperature=0), **fields})


def generate(model: ModelFacts, source: Source, **fields: Any) -> tuple[str, Generation]:
    generation = Generation(request_of(**fields), model, source)

    async def read() -> str:
        return "".join([text async for text in generation.text()])

    return asyncio.run(read()), generation
