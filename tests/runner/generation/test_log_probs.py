"""Log probabilities of a generation: one for each token, else an error, and never less text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from runner.engines.protocol.events import Event

from engine.directory import load
from errors.triton import TritonMalformedEvent
from runner.generation.generation import Generation
from runner.generation.model import load_model_facts
from runner.generation.request import GenerationRequest, SamplingInputs
from runner.settings.settings import load_settings
from tests.runner.paced_engine import make_paced_model


class Source:
    """Stands in for the slot: its events are given."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    async def generate(
        self, inputs: Mapping[str, Any], headers: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        yield self._events


def generate(folder: Path, *events: Event) -> tuple[str, list[float]]:
    """The text, and the values that came with it."""
    engine = make_paced_model(folder, 0)
    model = load_model_facts(load(engine.directory), load_settings({"HOME": str(folder)}))
    request = GenerationRequest("What is", 9, 0, (), SamplingInputs(), num_top_log_probs=0)

    async def read() -> tuple[str, list[float]]:
        generation = Generation(request, model, Source(*events))
        text = "".join([text async for text in generation.text()])
        return text, [each.value for _, each in generation.take_log_probs()]

    return asyncio.run(read())


def test_each_token_has_its_value(tmp_path: Path) -> None:
    events = (Event(output_ids=[40, 41], output_log_probs=[-1.0, -2.0]), Event([42], "length", -3.0))
    text, values = generate(tmp_path, *events)
    assert len(text) == 3
    assert values == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("values", [None, -1.0, [-1.0], [-1.0, -2.0, -3.0]])
def test_values_for_other_than_all_tokens_are_an_error_instead_of_lost_text(
    tmp_path: Path, values: float | list[float] | None
) -> None:
    with pytest.raises(TritonMalformedEvent, match="2 output_ids"):
        generate(tmp_path, Event(output_ids=[40, 41], finish_reason="length", output_log_probs=values))
