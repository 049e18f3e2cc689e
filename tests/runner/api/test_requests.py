"""From bodies to requests of the generation core."""

from __future__ import annotations

import pytest

from runner.api.openai.bodies import CompletionBody
from runner.api.openai.requests import completion_requests
from runner.api.served import Served
from runner.chat.template import ChatTemplate
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.settings.settings import load_settings
from tests.fuzz.bodies import END_ID, make_tokenizer

MODEL = ModelFacts(make_tokenizer(), (END_ID,), END_ID, 64, 63, ChatTemplate({}, {}))


@pytest.fixture(scope="module")
def served() -> Served:
    return Served(MODEL, load_settings({"ENGINE_DIR": "."}), "vllm", ("base", "twice"), ("french", "twice"))


def request_of(served: Served, **fields: object) -> GenerationRequest:
    ((request, _, _),) = (
        (each.request, each.count, each.echo)
        for each in completion_requests(
            CompletionBody(prompt="hi", **fields),
            served,  # type: ignore[arg-type]
        )
    )
    return request


@pytest.mark.parametrize(
    ("model", "lora_name"), [(None, None), ("base", None), ("french", "french"), ("twice", None)]
)
def test_the_model_names_the_adapter_unless_it_is_the_models_own_name(
    served: Served, model: str | None, lora_name: str | None
) -> None:
    assert request_of(served, model=model).lora_name == lora_name


@pytest.mark.parametrize(("given", "skips"), [(None, True), (True, True), (False, False)])
def test_special_tokens_are_left_out_unless_the_client_asks_for_them(
    served: Served, given: bool | None, skips: bool
) -> None:
    assert request_of(served, skip_special_tokens=given).skips_special_tokens == skips
