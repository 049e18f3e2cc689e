"""What a schema's guide allows is valid by a JSON Schema validator. What has no effect changes nothing."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance", reason="is in the engine environment")

from jsonschema import Draft202012Validator
from llguidance import LLTokenizer

from errors.requests import InvalidGuide
from runner.engines.guides.grammar import grammar_of, matcher
from runner.engines.protocol.messages import Guide

BYTES = LLTokenizer("byte")
KEYS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
EDGES = [0, 10, 10**15, 1 << 53, 10**17, 10**18, 1 << 60, 1 << 62, 1 << 63, 1 << 64, 10**20]
INT64 = {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}


def allowed(schema: Any, texts: list[str]) -> list[str]:
    """Return those of ``texts`` that the schema's guide allows. Raises InvalidGuide."""
    compiled = matcher(BYTES, grammar_of(Guide("json_schema", json.dumps(schema)), BYTES))
    found = []
    for text in texts:
        state = compiled.deep_copy()
        tokens = list(text.encode())
        if state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting():
            found.append(text)
    return found


def integers(edges: list[int]) -> st.SearchStrategy[int]:
    """Near the edges, of both signs."""
    near = st.integers(-3, 3) | st.integers(-1100, 1100)
    return st.builds(
        lambda edge, sign, by: sign * edge + by, st.sampled_from(edges), st.sampled_from([1, -1]), near
    )


def schemas(bounds: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    types = st.sampled_from(["integer", "number", ["integer", "null"]])
    chosen = st.dictionaries(st.sampled_from(KEYS), bounds, min_size=1, max_size=3)
    return st.builds(lambda kind, given: {"type": kind, **given}, types, chosen)


def around(schema: dict[str, Any], others: list[int]) -> list[str]:
    """Numbers near the schema's bounds, and ``others``."""
    near = {
        int(schema[key]) + by
        for key in KEYS
        if key in schema
        for by in (-1025, -1024, -2, -1, 0, 1, 2, 1024, 1025)
    }
    return sorted(
        {str(each) for each in (*near, *others)}
        | {f"{each}.5" for each in near}
        | {repr(schema[key]) for key in KEYS if key in schema and abs(schema[key]) < 1e15}
    )


def exact(text: str) -> Any:
    """Read JSON whose numbers are as they are written."""
    return json.loads(text, parse_float=Decimal)


@settings(max_examples=200, deadline=None)
@given(
    schemas(integers(EDGES) | integers(EDGES).map(float) | st.floats(-1e19, 1e19) | st.floats(-2, 2)),
    st.lists(integers(EDGES), max_size=8),
)
def test_a_number_that_is_allowed_is_within_the_bounds(schema: dict[str, Any], others: list[int]) -> None:
    try:
        found = allowed(schema, around(schema, others))
    except InvalidGuide:
        assume(False)
    # A bound such as 0.2 is as it is written, or as it is in binary.
    validators = [Draft202012Validator(each) for each in (schema, exact(json.dumps(schema)))]
    assert [text for text in found if not any(each.is_valid(exact(text)) for each in validators)] == []


@settings(max_examples=200, deadline=None)
@given(schemas(integers([0, 10, 10**15])), st.floats(-0.9, 0.9), st.lists(integers([0, 10**15]), max_size=8))
def test_up_to_2_53_exactly_the_integers_within_the_bounds_are_allowed(
    schema: dict[str, Any], part: float, others: list[int]
) -> None:
    if schema["type"] == "integer":
        schema = {key: schema[key] + part if key in KEYS else schema[key] for key in schema}
    texts = [text for text in around(schema, others) if "." not in text]
    validator = Draft202012Validator(schema)
    valid = [text for text in texts if validator.is_valid(json.loads(text))]
    assume(valid)
    assert allowed(schema, texts) == valid


@pytest.mark.parametrize(
    ("schema", "within", "beyond"),
    [
        (INT64, [0, (1 << 63) - 1, -(1 << 63) + 1024], [1 << 63, -(1 << 63) - 1]),
        ({"type": "integer", "minimum": -(1 << 63)}, [0, (1 << 63) - 1, 1 << 63], [-(1 << 63) - 1]),
        ({"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}, [0, (1 << 63) - 1], [-1, 1 << 64]),
        ({"type": "integer", "minimum": -(10**20)}, [-(10**18), 10**20], [-(10**20) - 1]),
        ({"type": "integer", "minimum": 1 << 62}, [1 << 62, (1 << 63) - 1], [(1 << 62) - 1]),
        ({"type": "integer", "minimum": (1 << 53) + 1}, [(1 << 53) + 2], [1 << 53]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, [6], [5]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": False}, [5], [4]),
        ({"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}, [0, -(10**18)], []),
        ({"type": "number", "minimum": 5e-324}, [1], [0, -1]),
        ({"type": "integer", "multipleOf": 3, "minimum": 1 << 60}, [(1 << 60) + 2], [1 << 60, 0]),
        ({"allOf": [INT64, {"minimum": -1, "not": False}]}, [4, -1], [-2]),
        ({"$ref": "#/definitions/a", "definitions": {"a": INT64}}, [4], [1 << 63]),
        ({"allOf": [INT64, {"multipleOf": 2}]}, [4, -(1 << 62)], [5]),
        (
            {"enum": [9007199254740994, (1 << 63) - 1, 10**19, -0.0]},
            [9007199254740994, (1 << 63) - 1, 10**19, 0],
            [1],
        ),
    ],
)
def test_what_schemas_of_int64_and_floats_bound(
    schema: dict[str, Any], within: list[int], beyond: list[int]
) -> None:
    assert allowed(schema, [str(each) for each in (*within, *beyond)]) == [str(each) for each in within]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "integer", "minimum": 10**20},
            r"at #: 100000000000000000000: bounds beyond 9223372036854775807",
        ),
        (
            {"type": "integer", "exclusiveMaximum": -(10**20)},
            r"at #: -100000000000000000000: bounds beyond -9",
        ),
        (
            {"type": "number", "minimum": 1e20},
            r"at #: 1e\+20: bounds beyond 9000000000000000000 can't be followed",
        ),
        (
            {"items": {"const": (1 << 53) + 1}},
            r"at #/items/const: 9007199254740993: such an integer beyond 2\^53",
        ),
        (
            {"items": [], "additionalItems": {"minimum": 10**20}},
            r"at #/additionalItems: 100000000000000000000",
        ),
        ({"properties": {"minimum": {"type": "integer"}, "a": {"minimum": 10**20}}}, "at #/properties/a: "),
        (
            {"properties": {"a/b": {"enum": [[-(1 << 63)]]}}},
            r"at #/properties/a~1b/enum: -9223372036854775808",
        ),
        (
            {"type": "integer", "minimum": (1 << 53) + 1, "maximum": (1 << 53) + 1},
            r"at #: 9007199254740993: no number from it to 9007199254740993 can be followed exactly",
        ),
        ({"type": "integer", "minimum": 5, "maximum": 3}, r"minimum \(5\) is greater than maximum \(3\)"),
        ({"minimum": None}, "Expected f64 for 'minimum', got null"),
        ({"const": 10**400}, r"at #/const: 1000"),
        ({"type": "integer", "const": -(2.0**63)}, r"at #/const: -9.22\S+: integers beyond -9"),
        ({"type": ["null", "integer"], "enum": [10**19]}, r"at #/enum: 10{19}: integers beyond 9"),
    ],
)
def test_numbers_that_can_not_be_followed_are_named(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidGuide, match=reason):
        allowed(schema, [])


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity"])
def test_what_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(InvalidGuide, match=f"{number} is no number of 64 bits"):
        grammar_of(Guide("json_schema", f'{{"maximum": {number}}}'), BYTES)


NO_EFFECT: list[dict[str, Any]] = [
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {"type": ["string", "null"], "description": "a name"}},
    {"propertyNames": True},
    {"uniqueItems": False},
    {"uniqueItems": True, "maxItems": 1},
    {"if": {"type": "integer"}},
    {"if": {"type": "integer"}, "then": {}, "else": True},
    {"then": False},
    {"else": {"type": "string"}},
    {"contains": {"type": "integer"}, "minContains": 0},
    {"minContains": 2, "maxContains": 1},
    {"dependencies": {}},
    {"dependentRequired": {"a": []}},
    {"dependentRequired": {"a": ["b"]}, "required": ["b"]},
    {"dependentSchemas": {"a": True}},
    {"minProperties": 1, "required": ["b"]},
    {"maxProperties": 1, "properties": {"b": {}}, "additionalProperties": False},
    {"additionalItems": False},
    {"allOf": [{}, True, {"description": "any"}], "patternProperties": {}},
    {"not": False},
    {"type": ["string", "array"], "minimum": 10**20, "exclusiveMaximum": False},
    {"unevaluatedItems": True, "unevaluatedProperties": {}},
    {"maxLength": 1 << 63, "maxItems": 1e20, "maxProperties": 1 << 53},
    {"format": "password"},
    {"format": "int64", "contentEncoding": "base64", "contentMediaType": "text/plain", "contentSchema": {}},
    {"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "$comment": "", "$dynamicAnchor": "a"},
    {"title": "", "default": None, "examples": [], "deprecated": True, "readOnly": True, "writeOnly": False},
    {"nullable": True, "discriminator": {"propertyName": "a"}, "x-order": 1, "markdownDescription": ""},
]
VALUES = ["5", '"a"', "null", "{}", '{"b":1}', '{"b":1,"a":2}', "[]", "[1]", "[1,1]"]


@pytest.mark.parametrize("keywords", NO_EFFECT, ids=str)
def test_a_keyword_without_effect_changes_nothing_at_any_place(keywords: dict[str, Any]) -> None:
    valid = [text for text in VALUES if Draft202012Validator(keywords).is_valid(json.loads(text))]
    assert allowed(keywords, VALUES) == valid
    for nested in (
        {"type": "object", "properties": {"x": keywords}, "required": ["x"], "additionalProperties": False},
        {"type": "object", "additionalProperties": {"anyOf": [keywords]}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/y"}, "$defs": {"y": keywords}},
        {"type": "object", "patternProperties": {"^x$": {"allOf": [keywords]}}},
    ):
        assert allowed(nested, [f'{{"x":{text}}}' for text in VALUES]) == [
            f'{{"x":{text}}}' for text in valid
        ]
    lists: dict[str, Any] = {"type": "array", "prefixItems": [keywords], "items": keywords}
    assert allowed(lists, [f"[{text},{text}]" for text in VALUES]) == [f"[{text},{text}]" for text in valid]


@pytest.mark.parametrize(
    "keywords",
    [
        {"propertyNames": {"pattern": "^a"}},
        {"propertyNames": {"type": "integer"}},
        {"uniqueItems": True},
        {"if": {"type": "integer"}, "then": False},
        {"if": {"type": "integer"}, "else": {"type": "string"}},
        {"contains": {"type": "integer"}},
        {"contains": {}, "minContains": 0, "maxContains": 1},
        {"dependentRequired": {"a": ["b"]}},
        {"not": {}},
        {"unevaluatedProperties": False},
        {"format": "idn-email"},
        {"minProperties": 3, "properties": {"a": {}}},
        {"required": 5, "minProperties": 1, "properties": {"a": {}}},
    ],
    ids=str,
)
def test_a_keyword_with_an_effect_is_followed_or_refused_with_its_place(keywords: dict[str, Any]) -> None:
    with pytest.raises(InvalidGuide, match="at #/properties/x: "):
        allowed({"type": "object", "properties": {"x": keywords}}, [])
