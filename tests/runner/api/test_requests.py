"""From bodies to requests of the generation core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.api.openai.bodies import ChatBody, CompletionBody, Function, Tool
from runner.api.openai.requests import chat_request, completion_requests
from runner.api.served import Served
from runner.chat.families.family import AnswerForm, Family
from runner.chat.families.hermes import HERMES
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


CHAT = ChatTemplate({"default": "{{ messages[0].content }}{% if thinks %}<think>\n{% endif %}"}, {})
SILENT = Family("silent", HERMES.calls)
"""Calls tools, but does not reason."""
TOOLS = [Tool(Function(name="look"))]


def form_of(served: Served, family: Family | None, **fields: object) -> AnswerForm | None:
    model = replace(MODEL, chat=CHAT, family=family)
    body = ChatBody(messages=[{"role": "user", "content": "hi"}], **fields)  # type: ignore[arg-type]
    return chat_request(body, replace(served, model=model)).request.answer


def test_an_answer_has_the_form_of_the_models_family_where_it_has_one(served: Served) -> None:
    assert form_of(served, None) is form_of(served, None, tools=TOOLS) is form_of(served, SILENT) is None
    assert form_of(served, HERMES) == AnswerForm(HERMES)
    opened = form_of(served, HERMES, chat_template_kwargs={"thinks": True})
    assert opened == AnswerForm(HERMES, starts_in_reasoning=True)
    for family in (SILENT, HERMES):
        form = form_of(served, family, tools=TOOLS)
        assert form is not None
        assert form.tools is not None
        assert form.tools.tools[0].name == "look"
    assert form_of(served, HERMES, tools=TOOLS, tool_choice="none") == AnswerForm(HERMES)
    assert form_of(served, HERMES, tools=TOOLS, skip_special_tokens=False) is None
