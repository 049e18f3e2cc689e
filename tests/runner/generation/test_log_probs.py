"""Log probabilities of a generation: one for each token of the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from engine.directory import load
from runner.engines.protocol.messages import Output, Sampling, Submit, TokenLogProb
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.model import load_model_facts
from runner.generation.request import GenerationRequest
from runner.settings.settings import load_settings
from tests.runner.paced_engine import make_paced_model


class Source:
    """Stands in for the engine server: its outputs are given."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        assert submit.wants_log_probs
        for output in self._outputs:
            yield output


def generate(folder: Path, *outputs: Output) -> tuple[str, list[float]]:
    """The text, and the values that came with it."""
    engine = make_paced_model(folder, 0)
    model = load_model_facts(load(engine.directory), load_settings({"HOME": str(folder)}))
    request = GenerationRequest("What is", 9, 0, (), Sampling(), num_top_log_probs=0)

    async def read() -> tuple[str, list[float]]:
        generation = Generation(request, model, Source(*outputs))
        text = "".join([text async for text in generation.text()])
        return text, [each.value for _, each in generation.take_log_probs()]

    return asyncio.run(read())


def test_each_token_has_its_value(tmp_path: Path) -> None:
    first = Output([40, 41], [TokenLogProb(-1.0), TokenLogProb(-2.0)])
    text, values = generate(tmp_path, first, Output([42], [TokenLogProb(-3.0)], "length"))
    assert len(text) == 3
    assert values == [-1.0, -2.0, -3.0]
