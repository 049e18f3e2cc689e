"""Guided answers of random tokens, of any family: calls of the tools, whose arguments fit their schemas."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from errors.requests import InvalidGuide, InvalidInput
from runner.chat.families import markers
from runner.chat.families.family import AnswerForm, Family
from runner.chat.families.hermes import HERMES
from runner.chat.families.json_calls import JsonCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.answer_guide import answer_guide
from runner.engines.guides.grammar import grammar_of, matcher
from runner.engines.protocol.messages import Guide
from tests.runner.chat.families.answers import Message, decoder, message_of, read, tokenizer_with

END = "<|our end|>"
MOST_TOKENS = 1500
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
SCHEMAS: dict[str, dict[str, Any]] = {"get_weather": WEATHER, "stop": {"type": "object"}}
GENERIC = Family("generic", JsonCalls(bare="{[", is_list=True))
FAMILIES = (HERMES, GENERIC)


def markers_of(family: Family) -> tuple[str, ...]:
    reasoning = family.reasoning
    calls = family.calls.markers if family.calls is not None else ()
    of_reasoning = (reasoning.begin, reasoning.end) if reasoning is not None else ()
    return tuple(dict.fromkeys(filter(None, (*calls, *of_reasoning))))


@lru_cache(maxsize=64)
def tokenizers(family: Family, kind: str) -> tuple[Tokenizer, LLTokenizer, int]:
    """``kind``: of the family's markers in the tokenizer."""
    markers = markers_of(family)
    made = {"special": (markers, ()), "added": ((), markers), "text": ((), ())}[kind]
    tokenizer = Tokenizer.from_str(tokenizer_with(*made).to_str())
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens([END])
    end = own.token_to_id(END)
    assert end is not None
    return tokenizer, LLTokenizer(own.to_str(), eos_token=end), end


def guided(
    family: Family,
    kind: str,
    use: ToolUse | None,
    then: Guide | None = None,
    budget: int | None = None,
    *,
    starts: bool = False,
) -> LLMatcher:
    """``starts``: in the reasoning."""
    tokenizer, library_tokenizer, _ = tokenizers(family, kind)
    guide = answer_guide(AnswerForm(family, use, starts), tokenizer, then, budget)
    assert guide is not None
    made = matcher(library_tokenizer, grammar_of(guide, LLTokenizer("byte")))
    assert not made.get_error()
    return made


def walk(family: Family, kind: str, made: LLMatcher, seed: int) -> list[int] | None:
    """Random tokens that the guide allows, to an end; None if there was none. Markers are often tried."""
    end = tokenizers(family, kind)[2]
    made, chance = made.deep_copy(), random.Random(seed)
    ids: list[int] = []
    first_marker = tokenizer_with().get_vocab_size()
    typed = [tokenizer_with().encode(each).ids for each in (*markers_of(family), '"}]', '[{"', "{", *SCHEMAS)]
    bare = family.calls.bare if family.calls is not None else ""
    tried = tokenizer_with().encode(chance.choice(bare)).ids if bare and seed % 2 else []
    while len(ids) < MOST_TOKENS:
        bits = np.unpackbits(np.frombuffer(made.compute_bitmask(), dtype=np.uint8), bitorder="little")
        assert not made.is_error(), made.get_error()
        allowed = bits.nonzero()[0].tolist()
        if end in allowed and (len(allowed) == 1 or chance.random() < 0.2):
            return ids
        markers = [each for each in allowed if first_marker <= each < end]
        tried = tried or list(chance.choice(typed) if chance.random() < 0.3 else ())
        if tried and tried[0] in allowed:
            token = tried.pop(0)
        else:
            tried = []
            token = chance.choice(markers if markers and chance.random() < 0.3 else allowed)
        if token == end:
            return ids
        assert made.consume_token(token), made.get_error()
        ids.append(token)
    return None


def message(
    family: Family, kind: str, ids: list[int], use: ToolUse | None, *, starts: bool = False
) -> Message:
    tokenizer = tokenizers(family, kind)[0]
    made = decoder(family, tokenizer, starts_in_reasoning=starts, tools=use)
    return message_of(read(made, [ids]))


def check_calls(read_message: Message, *, names: Sequence[str] = tuple(SCHEMAS)) -> None:
    for call in read_message.calls:
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("kind", ["special", "added", "text"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_required_calls_are_made_and_fit_their_schemas(family: Family, kind: str) -> None:
    num_calls = set()
    for is_parallel, starts in product((True, False), (True, False) if family.reasoning else (False,)):
        use = ToolUse(TOOLS, "required", is_parallel)
        made = guided(family, kind, use, starts=starts)
        for seed in range(6):
            ids = walk(family, kind, made, seed)
            if ids is None:
                continue
            answer = message(family, kind, ids, use, starts=starts)
            assert answer.content == ""
            assert len(answer.calls) == 1 or (is_parallel and answer.calls)
            check_calls(answer)
            num_calls.add(len(answer.calls))
    assert len(num_calls) > 1


@pytest.mark.parametrize("kind", ["special", "added", "text"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_with_a_strict_tool_text_stays_free_and_every_call_fits(family: Family, kind: str) -> None:
    num_calls = []
    for is_parallel in (True, False):
        use = ToolUse(TOOLS, "auto", is_parallel)
        made = guided(family, kind, use)
        for seed in range(10):
            ids = walk(family, kind, made, seed)
            if ids is None:
                continue
            answer = message(family, kind, ids, use)
            check_calls(answer)
            num_calls.append(len(answer.calls))
            assert is_parallel or len(answer.calls) <= 1
    assert 0 in num_calls
    assert max(num_calls) > 0


@pytest.mark.parametrize("kind", ["special", "added"])
@pytest.mark.parametrize("budget", [0, 1, 17])
def test_reasoning_ends_at_its_budget(kind: str, budget: int) -> None:
    """Exactly there, if the model does not end it before."""
    added = markers.Markers(tokenizers(HERMES, kind)[0], ("<think>", "</think>"))
    think, end_think = added.ids["<think>"], added.ids["</think>"]
    lengths = []
    uses, guides = (ToolUse(TOOLS), None), (None, Guide("regex", "[a-z]{9}"))
    for use, then, starts in product(uses, guides, (True, False)):
        made = guided(HERMES, kind, use, then, budget, starts=starts)
        for seed in range(4):
            ids = walk(HERMES, kind, made, seed) or []
            if not starts and think not in ids:
                assert end_think not in ids
                continue
            begin = -1 if starts else ids.index(think)
            lengths.append(ids.index(end_think) - begin - 1)
            answer = message(HERMES, kind, ids, use, starts=starts)
            assert ids.count(end_think) == 1
            assert then is None or answer.calls or (len(answer.content) == 9 and answer.content.isalpha())
            check_calls(answer)
    assert max(lengths) == budget
    assert budget == 0 or min(lengths) < budget


def test_a_budget_needs_a_token_that_ends_the_reasoning() -> None:
    made = guided(HERMES, "text", None, None, 0, starts=True)
    ids = walk(HERMES, "text", made, 0) or []
    assert message(HERMES, "text", ids, None, starts=True).reasoning == ""
    with pytest.raises(InvalidInput, match="thinking_token_budget must be 0 or left out, because the model"):
        guided(HERMES, "text", None, None, 5, starts=True)


@pytest.mark.parametrize("kind", ["special", "added", "text"])
def test_a_guide_begins_after_the_reasoning(kind: str) -> None:
    then = Guide("json_schema", json.dumps(WEATHER))
    made = guided(HERMES, kind, None, then, starts=True)
    ids = next(ids for seed in range(9) if (ids := walk(HERMES, kind, made, seed)) is not None)
    answer = message(HERMES, kind, ids, None, starts=True)
    assert answer.reasoning
    jsonschema.validate(json.loads(answer.content), WEATHER)


def test_without_reasoning_and_tools_a_guide_is_itself() -> None:
    then = Guide("regex", "a+")
    tokenizer, _, _ = tokenizers(HERMES, "text")
    assert answer_guide(AnswerForm(HERMES), tokenizer, then) is then
    assert answer_guide(AnswerForm(GENERIC), tokenizer, then, 5) is then
    assert answer_guide(AnswerForm(GENERIC), tokenizer, None, 5) is None
    auto = AnswerForm(HERMES, ToolUse(tuple(Tool(each.name) for each in TOOLS)))
    assert answer_guide(auto, tokenizer, None) is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"a": {"not": {}}}}, "parameters of the tool f: at #/properties/a: .*not supp"),
        ({"properties": {"a": {"$ref": "http://x"}}}, "parameters of the tool f: "),
        ({"description": "x" * 70_000}, "it has more than 65536 bytes"),
    ],
)
def test_a_schema_that_can_not_be_followed_is_refused_with_its_tool(
    parameters: dict[str, Any], message: str
) -> None:
    use = ToolUse((Tool("f", parameters=parameters),), "required")
    with pytest.raises(InvalidGuide, match=message):
        guided(HERMES, "added", use)
