"""With a guide even a random model's output is what was asked for, and nobody else's output changes."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import jsonschema
from tokenizers import Tokenizer

from errors.requests import GuideFailed, InvalidGuide
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Guide, GuideType, Sampling
from tests.runner.engines.guides.byte_tokenizer import END_ID
from tests.runner.engines.transformers.transformers_models import GREEDY, Served, prompt

pytestmark = pytest.mark.engine_env

PROMPT = prompt(9, seed=4)
MAX_TOKENS = 250
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(document: object) -> Guide:
    return Guide("json_schema", json.dumps(document))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def guided(
    served: Served, tokenizer: Tokenizer, guide: Guide, sampling: Sampling = GREEDY, **arguments: Any
) -> tuple[str, str]:
    (answer,) = guided_together(served, tokenizer, guide, [sampling], **arguments)
    return answer


def guided_together(
    served: Served, tokenizer: Tokenizer, guide: Guide, samplings: Sequence[Sampling], **arguments: Any
) -> list[tuple[str, str]]:
    """Do as ``guided`` does, for several requests at the same time."""
    fields = {"end_id": END_ID, "max_tokens": MAX_TOKENS, "guide": guide, **arguments}
    max_tokens = fields.pop("max_tokens")
    ids = [served.submit(PROMPT, max_tokens, sampling, **fields) for sampling in samplings]
    answers = [served.sink.wait(request_id) for request_id in ids]
    return [
        (tokenizer.decode([token for token in tokens if token != END_ID]), reason)
        for tokens, reason in answers
    ]


def seeds(count: int) -> list[Sampling]:
    return [Sampling(seed=seed) for seed in range(count)]


@pytest.mark.parametrize(
    "document",
    [
        PERSON,
        {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 70}, "maxItems": 2},
        {"anyOf": [{"enum": ["é", '"', 5]}, {"const": "a\\b"}, {"type": ["boolean", "null"]}]},
        {"type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$"},
        {**PERSON, "properties": {"name": {"type": "string", "format": "date"}, "age": {"enum": [1]}}},
    ],
)
def test_output_is_json_that_its_schema_allows_and_most_of_it_is_whole(
    served: Served, tokenizer: Tokenizer, document: dict[str, Any]
) -> None:
    samplings = [*seeds(12), *(Sampling(temperature=1.5, seed=seed) for seed in range(12))]
    answers = guided_together(served, tokenizer, schema(document), samplings)
    whole = [text for text, reason in answers if reason == "end"]
    assert len(whole) >= 12
    assert len(set(whole)) > 2
    for text in whole:
        jsonschema.validate(json.loads(text), document)


def test_json_without_a_schema_is_an_object_or_an_array(served: Served, tokenizer: Tokenizer) -> None:
    answers = guided_together(served, tokenizer, Guide("json"), seeds(24))
    whole = [json.loads(text) for text, reason in answers if reason == "end"]
    assert whole
    assert all(isinstance(each, dict | list) for each in whole)
    assert all(text.lstrip()[:1] in ("{", "[") for text, _ in answers)


@pytest.mark.parametrize(
    "regex",
    [
        "a/b",
        "[0-9]{3}-[a-f]{2,5}",
        "(yes|no|maybe)( please)?",
        r"\d{1,3}(\.\d{1,3}){3}",
        "[àéü]{2,4}",
        "x",
        "^a{3}$",
    ],
)
def test_output_matches_the_whole_regex(served: Served, tokenizer: Tokenizer, regex: str) -> None:
    for text, reason in guided_together(served, tokenizer, Guide("regex", regex), seeds(6)):
        assert reason == "end"
        assert re.fullmatch(regex, text)


def test_output_follows_a_grammar(served: Served, tokenizer: Tokenizer) -> None:
    grammar = 'root ::= sum " = " number\nsum ::= number (" + " number){0,3}\nnumber ::= [0-9]{1,2}'
    answers = guided_together(served, tokenizer, Guide("ebnf_grammar", grammar), seeds(8))
    whole = [text for text, reason in answers if reason == "end"]
    assert whole
    assert all(re.fullmatch(r"\d{1,2}( \+ \d{1,2}){0,3} = \d{1,2}", text) for text in whole)


def test_whitespace_between_the_parts_of_json_is_bounded(served: Served, tokenizer: Tokenizer) -> None:
    blank = tokenizer.encode(" ").ids[0]
    likes_blanks = Sampling(temperature=0.0, logit_bias={blank: 100.0})
    closed = {**PERSON, "properties": {"age": {"const": 1}}, "required": ["age"]}
    text, reason = guided(served, tokenizer, schema(closed), likes_blanks)
    assert (json.loads(text), reason) == ({"age": 1}, "end")


def test_it_ends_where_nothing_can_follow_even_without_an_end_id(
    served: Served, tokenizer: Tokenizer
) -> None:
    assert guided(served, tokenizer, Guide("regex", "abc"), end_id=None) == ("abc", "end")
    assert guided(served, tokenizer, Guide("regex", "abc"), max_tokens=3) == ("abc", "end")


def test_a_stop_word_ends_it_before_the_guide_does(served: Served, tokenizer: Tokenizer) -> None:
    stop = tokenizer.encode("y").ids
    answer = guided(served, tokenizer, Guide("regex", "xxxyxxx"), stop_words=[stop])
    assert answer == ("xxxy", "stop")


def test_min_tokens_holds_as_far_as_the_guide_lets_it(served: Served, tokenizer: Tokenizer) -> None:
    text, _ = guided(served, tokenizer, Guide("regex", "[a-z]{1,200}"), min_tokens=50)
    assert len(tokenizer.encode(text).ids) >= 40
    assert guided(served, tokenizer, Guide("regex", "abc"), min_tokens=50) == ("abc", "end")
    stop = tokenizer.encode("c").ids
    assert guided(served, tokenizer, Guide("regex", "abc"), min_tokens=50, stop_words=[stop])[0] == "abc"


def test_bad_words_that_leave_nothing_fail_the_request(served: Served, tokenizer: Tokenizer) -> None:
    bad = tokenizer.encode("y").ids
    with pytest.raises(GuideFailed, match=r"follow its regex after 2 tokens: .*bad_words_list"):
        guided(served, tokenizer, Guide("regex", "xxy"), bad_words=[bad])
    assert guided(served, tokenizer, Guide("regex", "xx[yz]"), bad_words=[bad]) == ("xxz", "end")


def test_a_seed_gives_the_same_guided_output_and_free_ones_stay_as_they_are_alone(
    served: Served, tokenizer: Tokenizer
) -> None:
    free = [Sampling(seed=seed) for seed in range(4)] + [GREEDY, Sampling(top_p=0.9, seed=7)]
    alone = [served.answer(PROMPT, 25, sampling) for sampling in free]
    guide, sampling = schema(PERSON), Sampling(seed=11)
    by_itself = served.answer(PROMPT, 25, sampling, guide=guide, end_id=END_ID)
    mixed = []
    for each in free:
        mixed.append(served.submit(PROMPT, 25, each))
        served.submit(PROMPT, 25, Sampling(seed=3), guide=Guide("regex", "[a-z ]*"))
    beside = served.submit(PROMPT, 25, sampling, guide=guide, end_id=END_ID)
    assert [served.sink.wait(request_id) for request_id in mixed] == alone
    assert served.sink.wait(beside) == by_itself


@pytest.mark.parametrize(
    ("guide_type", "text"),
    [
        ("regex", "a(b"),
        ("json_schema", json.dumps({"allOf": [{"multipleOf": each} for each in (997, 991, 983)]})),
    ],
)
def test_a_wrong_or_hostile_guide_fails_alone(
    served: Served, tokenizer: Tokenizer, guide_type: GuideType, text: str
) -> None:
    free = served.answer(PROMPT, 10)
    with pytest.raises(InvalidGuide, match=f"The {guide_type} can't"):
        guided(served, tokenizer, Guide(guide_type, text), Sampling(seed=1), max_tokens=30)
    assert served.answer(PROMPT, 10) == free
    assert served.sink.breaks == []


def test_a_guide_that_compiles_long_holds_up_no_other_request(served: Served) -> None:
    """A free request asked for after it has all its tokens before the guide is compiled."""
    large = schema({"type": "object", "properties": {f"p{i}": {} for i in range(2500)}})
    slow = served.submit(PROMPT, 5, guide=large, end_id=END_ID)
    free = served.submit(PROMPT, 5)
    served.sink.wait(free)
    assert slow not in served.sink.ends
    served.engine.cancel(slow)
    assert served.sink.wait(slow) == ([], "cancelled")


def test_an_engine_with_a_tokenizer_offers_all_guides(served: Served) -> None:
    assert served.engine.ready.guide_types == ALL_GUIDE_TYPES
