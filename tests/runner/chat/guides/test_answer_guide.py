"""Guided answers of random tokens, of any family: calls of the tools, whose arguments fit their schemas."""

import json
import random
import tracemalloc
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from errors.requests import InvalidGuide, InvalidInput
from runner.chat.families import markers
from runner.chat.families.family import AnswerForm
from runner.chat.families.recognition import FAMILIES
from runner.chat.families.syntax.invoke_calls import InvokeCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.answer_guide import answer_guide
from runner.chat.guides.calls import closed
from runner.engines.guides.grammar import grammar_of, matcher
from runner.engines.protocol.messages import Guide
from tests.runner.chat.families.answers import Message, decoder, message_of, read, tokenizer_with
from tests.runner.chat.families.forms import FORMS, Form

END = "<|our end|>"
MOST_TOKENS = 500
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "unit": {"enum": ["°C", "°F"]},
        "fields": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("get_weather", parameters=WEATHER, is_strict=True), Tool("stop", parameters={}))
SCHEMAS = {"get_weather": Draft202012Validator(WEATHER), "stop": Draft202012Validator({"type": "object"})}
HERMES = {"special": "hermes, special", "added": "hermes", "text": "hermes, markers as text"}
"""Forms by what the markers are in the tokenizer."""
CLOSING = ('"}]', "</think>", ";", "\n</parameter>\n", "</function>")
NOT_ENFORCED = "functionary"
NAMES = sorted({*FORMS, *HERMES.values()} - {NOT_ENFORCED, "minimax-m3, markers as text"})


def form_of(name: str) -> Form:
    if name == HERMES["special"]:
        form = FORMS["hermes"]
        return replace(form, special=form.added, added=form.special)
    if name == "gpt-oss":  # Models end answers with this token, which is not in their text.
        return replace(FORMS[name], special=(*FORMS[name].special, "<|return|>"))
    return FORMS[name]


@lru_cache(maxsize=64)
def tokenizers(name: str) -> tuple[Tokenizer, LLTokenizer, int]:
    """Return the tokenizer, and the library's, with its number of the end."""
    form = form_of(name)
    tokenizer = tokenizer_with(form.special, form.added)
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens([END])
    end = own.token_to_id(END)
    assert end is not None
    return tokenizer, LLTokenizer(own.to_str(), eos_token=end), end


def guided(
    name: str,
    use: ToolUse | None,
    then: Guide | None = None,
    budget: int | None = None,
    *,
    starts: bool = False,
) -> LLMatcher:
    """Make a matcher. ``starts``: it begins in the reasoning."""
    tokenizer, library_tokenizer, _ = tokenizers(name)
    guide = answer_guide(AnswerForm(form_of(name).family, use, starts), tokenizer, then, budget)
    assert guide is not None
    made = matcher(library_tokenizer, grammar_of(guide, LLTokenizer("byte")))
    assert not made.get_error()
    return made


def walk(name: str, made: LLMatcher, seed: int) -> list[int] | None:
    """Random tokens that the guide allows, to an end; None if there was none. Markers are often tried."""
    end = tokenizers(name)[2]
    made, chance = made.deep_copy(), random.Random(seed)
    ids: list[int] = []
    first_marker = tokenizer_with().get_vocab_size()
    calls = form_of(name).family.calls
    texts = [*calls.markers, *calls.begins, *CLOSING, *SCHEMAS]
    if isinstance(calls, InvokeCalls):
        texts += [calls.call, calls.parameter_end]
    typed = [tokenizer_with().encode(each).ids for each in texts if each]
    begins = [*calls.begins, *calls.bare] or [""]
    tried = tokenizer_with().encode(chance.choice(begins)).ids if seed % 2 else []
    while len(ids) < MOST_TOKENS:
        bits = np.unpackbits(np.frombuffer(made.compute_bitmask(), dtype=np.uint8), bitorder="little")
        assert not made.is_error(), made.get_error()
        allowed = bits.nonzero()[0].tolist()
        if bits[end] and not tried and (len(allowed) == 1 or chance.random() < 0.2):
            return ids
        markers = allowed[bisect_left(allowed, first_marker) : bisect_left(allowed, end)]
        tried = tried or list(chance.choice(typed) if chance.random() < 0.3 else ())
        if tried and bits[tried[0]]:
            token = tried.pop(0)
        else:
            tried = []
            token = chance.choice(markers if markers and chance.random() < 0.3 else allowed)
        if token == end:
            return ids
        assert made.consume_token(token), made.get_error()
        ids.append(token)
    return None


def message(name: str, ids: list[int], use: ToolUse | None, *, starts: bool = False) -> Message:
    tokenizer = tokenizers(name)[0]
    made = decoder(form_of(name).family, tokenizer, starts_in_reasoning=starts, tools=use)
    return message_of(read(made, [ids]))


def answers(
    name: str, made: LLMatcher, use: ToolUse | None, count: int, *, starts: bool = False
) -> Iterator[tuple[list[int], Message]]:
    """Yield the tokens of random answers that the guide allows, and what is read of them."""
    for seed in range(count):
        if (ids := walk(name, made, seed)) is not None:
            yield ids, message(name, ids, use, starts=starts)


def check_calls(read_message: Message, *, names: Sequence[str] = tuple(SCHEMAS)) -> None:
    for call in read_message.calls:
        assert call.name in names
        SCHEMAS[call.name].validate(json.loads(call.arguments))


@pytest.mark.parametrize("name", NAMES)
def test_required_calls_are_made_and_fit_their_schemas(name: str) -> None:
    num_calls = set()
    family = form_of(name).family
    for is_parallel, starts in product((True, False), (True, False) if family.reasoning else (False,)):
        use = ToolUse(TOOLS, "required", is_parallel)
        made = guided(name, use, starts=starts)
        for _, answer in answers(name, made, use, 4, starts=starts):
            assert answer.content == ""
            assert len(answer.calls) == 1 or (is_parallel and answer.calls)
            check_calls(answer)
            num_calls.add(len(answer.calls))
    assert 1 in num_calls
    assert family.has_channels or max(num_calls) > 1


def test_calls_that_cannot_be_enforced_are_refused() -> None:
    with pytest.raises(InvalidGuide, match="can't be enforced; use tool_choice auto"):
        guided(NOT_ENFORCED, ToolUse(TOOLS, "required"))


@pytest.mark.parametrize("name", NAMES)
def test_with_a_strict_tool_text_stays_free_and_every_call_fits(name: str) -> None:
    num_calls = []
    for is_parallel in (True, False):
        use = ToolUse(TOOLS, "auto", is_parallel)
        made = guided(name, use)
        for _, answer in answers(name, made, use, 9):
            check_calls(answer)
            num_calls.append(len(answer.calls))
            assert is_parallel or len(answer.calls) <= 1
    assert 0 in num_calls
    assert max(num_calls) > 0


@pytest.mark.parametrize("kind", ["special", "added"])
@pytest.mark.parametrize("budget", [0, 1, 17])
def test_reasoning_ends_at_its_budget(kind: str, budget: int) -> None:
    """Exactly there, if the model does not end it before."""
    added = markers.Markers(tokenizers(HERMES[kind])[0], ("<think>", "</think>"))
    think, end_think = added.ids["<think>"], added.ids["</think>"]
    lengths = []
    uses, guides = (ToolUse(TOOLS), None), (None, Guide("regex", "[a-z]{9}"))
    for use, then, starts in product(uses, guides, (True, False)):
        made = guided(HERMES[kind], use, then, budget, starts=starts)
        for ids, answer in answers(HERMES[kind], made, use, 4, starts=starts):
            if not starts and think not in ids:
                assert end_think not in ids
                continue
            begin = -1 if starts else ids.index(think)
            lengths.append(ids.index(end_think) - begin - 1)
            assert ids.count(end_think) == 1
            assert then is None or answer.calls or (len(answer.content) == 9 and answer.content.isalpha())
            check_calls(answer)
    assert max(lengths) == budget
    assert budget == 0 or min(lengths) < budget


@pytest.mark.parametrize("name", ["gpt-oss", "command-r", "mistral v13", "kimi-k2", "qwen3-coder", "glm"])
def test_a_budget_holds_in_every_form_of_reasoning(name: str) -> None:
    """Exactly: the random model that is not allowed to end it fills it, and a required call follows."""
    reasoning = form_of(name).family.reasoning
    end = tokenizers(name)[0].token_to_id(reasoning.end)
    use = ToolUse(TOOLS, "required", is_parallel=False)
    made = guided(name, use, None, 40, starts=True)
    for token in tokenizer_with().encode("a b " * 10).ids[:40]:
        assert made.consume_token(token)
    allowed = np.unpackbits(np.frombuffer(made.compute_bitmask(), dtype=np.uint8), bitorder="little")
    assert allowed.nonzero()[0].tolist() == [end]
    ids, answer = next(answers(name, guided(name, use, None, 3, starts=True), use, 20, starts=True))
    assert ids.index(end) <= 3
    assert len(answer.calls) == 1
    check_calls(answer)


def test_a_budget_needs_a_token_that_ends_the_reasoning() -> None:
    made = guided(HERMES["text"], None, None, 0, starts=True)
    _, answer = next(answers(HERMES["text"], made, None, 9, starts=True))
    assert answer.reasoning == ""
    with pytest.raises(InvalidInput, match="thinking_token_budget must be 0 or left out, because the model"):
        guided(HERMES["text"], None, None, 5, starts=True)


@pytest.mark.parametrize("kind", ["special", "added", "text"])
def test_a_guide_begins_after_the_reasoning(kind: str) -> None:
    then = Guide("json_schema", json.dumps(WEATHER))
    made = guided(HERMES[kind], None, then, starts=True)
    _, answer = next(answers(HERMES[kind], made, None, 9, starts=True))
    assert answer.reasoning
    SCHEMAS["get_weather"].validate(json.loads(answer.content))


@pytest.mark.parametrize(
    "name", ["generic", "llama3", "llama4", "gpt-oss", "command-r", "granite", "qwen3-coder"]
)
def test_content_follows_its_guide_or_is_calls(name: str) -> None:
    then = Guide("json_schema", json.dumps(WEATHER))
    kinds = set()
    for use, starts in product((ToolUse(TOOLS), None), {False, form_of(name).family.reasoning is not None}):
        if use is None and not starts and not form_of(name).family.has_channels:
            continue
        made = guided(name, use, then, starts=starts)
        for _, answer in answers(name, made, use, 8, starts=starts):
            check_calls(answer)
            if not answer.calls:
                SCHEMAS["get_weather"].validate(json.loads(answer.content))
            kinds.add(bool(answer.calls))
    assert False in kinds


def test_without_reasoning_and_tools_a_guide_is_itself() -> None:
    then = Guide("regex", "a+")
    tokenizer, _, _ = tokenizers(HERMES["text"])
    assert answer_guide(AnswerForm(FAMILIES["hermes"]), tokenizer, then) is then
    assert answer_guide(AnswerForm(FAMILIES["generic"]), tokenizer, then, 5) is then
    assert answer_guide(AnswerForm(FAMILIES["generic"]), tokenizer, None, 5) is None
    auto = AnswerForm(FAMILIES["hermes"], ToolUse(tuple(Tool(each.name) for each in TOOLS)))
    assert answer_guide(auto, tokenizer, None) is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"a": {"not": {}}}}, "parameters of the tool f: at #/properties/a: .*not supp"),
        ({"properties": {"a": {"$ref": "http://x"}}}, "parameters of the tool f: "),
        ({"description": "x" * 70_000}, "it has more than 65536 bytes"),
        (reduce(lambda part, _: {"items": part}, range(2000), {}), "tool f: they are nested too deeply"),
    ],
)
def test_a_schema_that_can_not_be_followed_is_refused_with_its_tool(
    parameters: dict[str, Any], message: str
) -> None:
    use = ToolUse((Tool("f", parameters=parameters),), "required")
    with pytest.raises(InvalidGuide, match=message):
        guided(HERMES["added"], use)


IDLE = {"uniqueItems": False, "not": False, "x-order": 1, "format": "password", "contentEncoding": "base64"}


@pytest.mark.parametrize("name", ["glm", "qwen3-coder", "hermes"])
def test_keywords_without_effect_are_accepted_in_a_tools_schema(name: str) -> None:
    text = {"type": "string", "minimum": 5, **IDLE}
    parameters = {"type": "object", "properties": {"a": text}, "minProperties": 0, "if": {}, **IDLE}
    use = ToolUse((Tool("f", parameters=parameters),), "required")
    guide = answer_guide(AnswerForm(FAMILIES[name], use), tokenizers(HERMES["text"])[0], None)
    assert guide is not None
    grammar_of(guide, LLTokenizer("byte"))


NAMED = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        (NAMED, NAMED | {"additionalProperties": False}),
        (NAMED | {"additionalProperties": True}, NAMED | {"additionalProperties": True}),
        (NAMED | {"required": ["b"]}, NAMED | {"required": ["b"]}),
        (NAMED | {"required": [["a"]]}, NAMED | {"required": [["a"]]}),
        (NAMED | {"allOf": [{}]}, NAMED | {"allOf": [{}]}),
        ({"items": NAMED}, {"items": NAMED | {"additionalProperties": False}}),
        (
            {"properties": {"x": NAMED, "y": True}},
            {
                "properties": {"x": NAMED | {"additionalProperties": False}, "y": True},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_properties_that_a_schema_does_not_name_are_left_out(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert closed(given) == expected


@pytest.mark.parametrize("name", ["glm", "qwen3-coder", "llama4"])
def test_definitions_that_each_parameter_repeats_take_no_memory_without_limit(name: str) -> None:
    properties = {f"p{number}": {"type": "integer"} for number in range(1000)}
    parameters = {"$defs": {"a": {"enum": ["x" * 50_000]}}, "properties": properties}
    use = ToolUse((Tool("f", parameters=parameters),), "required")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidGuide, match="it has more than 131072 bytes"):
            answer_guide(AnswerForm(form_of(name).family, use), tokenizers(name)[0], None)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
