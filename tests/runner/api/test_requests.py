"""From bodies to requests of the generation core."""

from dataclasses import replace

import pytest

from errors.api import UnsupportedField
from errors.chat import ChatTemplateRefused
from errors.requests import InvalidInput
from runner.api.document import make_document
from runner.api.openai.bodies import (
    AllowedTools,
    ChatBody,
    CompletionBody,
    Function,
    FunctionName,
    NamedTool,
    Tool,
    ToolSubset,
)
from runner.api.openai.requests import chat_request, completion_requests
from runner.api.served import Served
from runner.chat.families.bare_json import GENERIC
from runner.chat.families.family import AnswerForm, Family
from runner.chat.families.json_families import HERMES
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import Guide
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from runner.settings.settings import load_settings
from tests.fuzz.bodies import END_ID, make_tokenizer

TOKENIZING = Tokenizing(make_tokenizer(), max_bytes=1 << 16, max_tokens=63)
MODEL = ModelFacts(TOKENIZING, (END_ID,), END_ID, 64, 63, ChatTemplate({}, {}))


@pytest.fixture(scope="module")
def served() -> Served:
    return Served(MODEL, load_settings({"ENGINE_DIR": "."}), "vllm", ("base", "twice"), ("french", "twice"))


def request_of(served: Served, **fields: object) -> GenerationRequest:
    ((request, _, _),) = (
        (each.request, each.count, each.echo)
        for each in completion_requests(
            CompletionBody(prompt="hi", **fields),
            served,
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


def test_stop_sequences_are_one_or_several_else_those_of_the_settings(served: Served) -> None:
    usual = replace(served, settings=load_settings({"ENGINE_DIR": ".", "STOP_SEQUENCES": "x,,y"}))
    for stop, found in (("ab", ("ab",)), (["ab", "b"], ("ab", "b")), ([], ()), (None, ("x", "y"))):
        assert request_of(usual, stop=stop).stop_sequences == found


DEFAULTS = {"temperature": 0.6, "top_p": 0, "top_k": -1, "min_p": 0.1, "max_new_tokens": 20}


def test_a_request_without_sampling_parameters_has_those_of_the_model(served: Served) -> None:
    usual = replace(served, model=replace(MODEL, sampling_defaults=DEFAULTS))
    sampling = request_of(usual).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 1e-6, -1, 0.1)
    sampling = request_of(usual, temperature=0, top_p=1, top_k=5, min_p=0).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 1, 5, 0)
    assert request_of(usual).max_tokens == 16
    assert request_of(replace(usual, engine_kind="tensorrt_llm")).sampling.min_p == 0
    assert request_of(served).sampling.temperature == 1


def test_a_chat_ends_at_the_models_maximum_unless_it_has_its_own(served: Served) -> None:
    usual = replace(served, model=replace(MODEL, sampling_defaults=DEFAULTS, chat=CHAT))
    user = [{"role": "user", "content": "hi"}]

    def max_tokens(**fields: object) -> int:
        return chat_request(ChatBody(messages=user, **fields), usual).request.max_tokens

    assert (max_tokens(), max_tokens(max_tokens=30), max_tokens(max_completion_tokens=40)) == (20, 30, 40)
    assert max_tokens(min_tokens=25) == 25
    document = make_document(usual)["components"]["schemas"]
    assert document["ChatBody"]["properties"]["max_tokens"]["default"] == 20
    assert document["ResponsesBody"]["properties"]["temperature"]["default"] == 0.6


SHOWN_TOOLS = "{% for each in tools or () %} {{ each.function.name }}{% endfor %}"
OPENED = "{% if thinks %}<think>\n{% endif %}"
CHAT = ChatTemplate({"default": "{{ messages[0].content }}" + SHOWN_TOOLS + OPENED}, {})
SILENT = Family("silent", HERMES.calls)
THOUGHTFUL = Family("thoughtful", None, HERMES.reasoning)
TOOLS = [Tool(Function(name="look"))]


def chat(served: Served, family: Family | None, **fields: object) -> GenerationRequest:
    model = replace(MODEL, chat=CHAT, family=family)
    body = ChatBody(messages=[{"role": "user", "content": "hi"}], **fields)
    return chat_request(body, replace(served, model=model)).request


def test_no_log_probs_are_asked_for_by_a_number_of_0(served: Served) -> None:
    assert chat(served, None, top_logprobs=0).num_top_log_probs is None
    assert chat(served, None, top_logprobs=0, logprobs=True).num_top_log_probs == 0


def test_an_effort_that_the_template_refuses_is_left_out(served: Served) -> None:
    refuses = (
        "{% if reasoning_effort | default('low') not in ['low'] %}{{ raise_exception('no') }}{% endif %}"
    )
    template = ChatTemplate(
        {"default": refuses + "{{ messages[0].content, reasoning_effort, enable_thinking }}"}, {}
    )
    model = replace(MODEL, chat=template)

    def prompt(**fields: object) -> object:
        body = ChatBody(messages=[{"role": "user", "content": "hi"}], **fields)
        return chat_request(body, replace(served, model=model)).request.prompt

    assert prompt(reasoning_effort="low") == "('hi', 'low', True)"
    assert prompt(reasoning_effort="high") == "('hi', Undefined, True)"
    with pytest.raises(ChatTemplateRefused, match="no"):
        prompt(chat_template_kwargs={"reasoning_effort": "high"})


def form_of(served: Served, family: Family | None, **fields: object) -> AnswerForm | None:
    return chat(served, family, **fields).answer


def test_an_answer_has_the_form_of_the_models_family_where_it_has_one(served: Served) -> None:
    assert form_of(served, None) is form_of(served, None, tools=TOOLS) is form_of(served, SILENT) is None
    assert form_of(served, HERMES) == AnswerForm(HERMES)
    opened = form_of(served, HERMES, chat_template_kwargs={"thinks": True})
    assert opened == AnswerForm(HERMES, starts_in_reasoning=True)
    for family in (SILENT, HERMES):
        form = form_of(served, family, tools=TOOLS)
        assert form.tools.tools[0].name == "look"
    assert form_of(served, HERMES, tools=TOOLS, tool_choice="none") == AnswerForm(HERMES)
    assert form_of(served, HERMES, tools=TOOLS, skip_special_tokens=False) is None


@pytest.mark.parametrize("family", [None, THOUGHTFUL, SILENT, HERMES])
def test_required_calls_have_a_guide_in_the_form_of_a_family(served: Served, family: Family | None) -> None:
    request = chat(served, family, tools=TOOLS, tool_choice="required")
    assert request.answer.family.calls == ((family and family.calls) or GENERIC.calls)
    assert request.answer.family.reasoning == (family and family.reasoning)
    assert request.guide.type == "chat_form"
    assert chat(served, family, tools=TOOLS).guide is None


def test_a_guide_begins_after_the_reasoning_where_the_engine_can_follow_both(served: Served) -> None:
    plain = chat(served, None, guided_regex="a+").guide
    thinks = {"thinks": True}
    after = chat(served, HERMES, guided_regex="a+", chat_template_kwargs=thinks)
    assert (plain, after.guide) == (Guide("regex", "a+"), after.guide)
    assert after.guide.type == "chat_form"
    other = replace(served, engine_kind="tensorrt_llm")
    alone = chat(other, HERMES, guided_regex="a+", chat_template_kwargs=thinks)
    assert (alone.guide, alone.answer) == (plain, AnswerForm(HERMES))


def test_a_limit_of_reasoning_is_a_guide_where_the_model_reasons(served: Served) -> None:
    limit = {"thinking_token_budget": 0, "chat_template_kwargs": {"thinks": True}}
    assert chat(served, HERMES, **limit).guide is not None
    assert chat(served, None, **limit).guide is chat(served, SILENT, **limit).guide is None
    with pytest.raises(UnsupportedField, match="thinking_token_budget"):
        chat(replace(served, engine_kind="tensorrt_llm"), HERMES, **limit)
    for fields in ({"tools": TOOLS, "tool_choice": "required"}, limit):
        with pytest.raises(InvalidInput, match="skip_special_tokens must be left out"):
            chat(served, HERMES, skip_special_tokens=False, **fields)


def test_the_template_shows_the_tools_that_may_be_called_or_all_beside_a_named_one(served: Served) -> None:
    tools = [*TOOLS, Tool(Function(name="wait"))]
    named = NamedTool(FunctionName("wait"))
    some = AllowedTools(ToolSubset("auto", [named]))
    for choice, shown in ((None, "hi look wait"), ("none", "hi"), (named, "hi look wait"), (some, "hi wait")):
        assert chat(served, HERMES, tools=tools, tool_choice=choice).prompt == shown
