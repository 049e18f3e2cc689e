"""Guides, which constrain an output, from OpenAI's field and vLLM's old and new fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engine.kinds import supports
from errors.api import UnsupportedField
from errors.requests import InvalidInput
from runner.api.openai.bodies import AnyObject, GenerationBody, SchemaFormat, StructuredOutputs
from runner.engines.protocol.messages import Guide

GUIDE_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_ANY_OBJECT = '{"type": "object"}'


def guide_of(body: GenerationBody, engine_kind: str) -> Guide | None:
    """Raises E1005 for more than one guide, and E1602 for an engine that does not support guides."""
    given = dict(_given(body))
    if not given:
        return None
    field, *others = given
    if others:
        raise InvalidInput(
            name=others[0], expected=f"left out, because there is {field}", value=given[others[0]].text
        )
    if not supports(engine_kind, "guides"):
        raise UnsupportedField(name=field, engine_kind=engine_kind)
    return given[field]


def body_field(body: GenerationBody) -> str | None:
    """The first field of a body that is a guide."""
    return next((field for field, _ in _given(body)), None)


def _given(body: GenerationBody) -> Iterator[tuple[str, Guide]]:
    match body.response_format:
        case AnyObject():
            yield "response_format", Guide("json_schema", _ANY_OBJECT)
        case SchemaFormat(json_schema=described):
            yield "response_format", _schema(described.schema)
    if body.guided_json is not None:
        yield "guided_json", _schema(body.guided_json)
    if body.guided_regex is not None:
        yield "guided_regex", Guide("regex", body.guided_regex)
    if body.guided_choice is not None:
        yield "guided_choice", _choice(body.guided_choice)
    if body.guided_grammar is not None:
        yield "guided_grammar", Guide("ebnf_grammar", body.guided_grammar)
    if body.structured_outputs is not None:
        yield from _structured(body.structured_outputs)


def _structured(outputs: StructuredOutputs) -> Iterator[tuple[str, Guide]]:
    if outputs.json is not None:
        yield "structured_outputs.json", _schema(outputs.json)
    if outputs.json_object:
        yield "structured_outputs.json_object", Guide("json_schema", _ANY_OBJECT)
    if outputs.regex is not None:
        yield "structured_outputs.regex", Guide("regex", outputs.regex)
    if outputs.choice is not None:
        yield "structured_outputs.choice", _choice(outputs.choice)
    if outputs.grammar is not None:
        yield "structured_outputs.grammar", Guide("ebnf_grammar", outputs.grammar)


def _schema(schema: str | dict[str, Any]) -> Guide:
    return Guide("json_schema", schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False))


def _choice(choices: list[str]) -> Guide:
    """NOTE: a string of the grammar is written like one of JSON."""
    texts = [json.dumps(each, ensure_ascii=False) for each in choices]
    return Guide("ebnf_grammar", f"root ::= {' | '.join(texts)}")
