"""Guides, which constrain an output, from OpenAI's field and vLLM's old and new fields."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from engine.kinds import supports
from errors.api import UnsupportedField
from errors.requests import InvalidInput
from runner.api.openai.bodies import AnyObject, GenerationBody, SchemaFormat
from runner.engines.protocol.messages import Guide

GUIDE_FIELDS = (
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
    "guided_grammar",
)
_ANY_OBJECT = '{"type": "object"}'


def guide_of(body: GenerationBody, engine_kind: str) -> Guide | None:
    """Return the body's guide. Raises E1005 for several, and E1602 for an engine without guides."""
    given = dict(_given(body))
    if not given:
        return None
    field, *others = given
    if others:
        raise InvalidInput(
            name=others[0], expected=f"left out, because there is {field}", value=given[others[0]]().text
        )
    if not supports(engine_kind, "guides"):
        value = given[field]().text
        raise UnsupportedField(name=field, value=value, engine_kind=engine_kind, remedy="leave it out")
    return given[field]()


def body_field(body: GenerationBody) -> str | None:
    """Return the first field of a body that is a guide."""
    return next((field for field, _ in _given(body)), None)


def error_field(body: GenerationBody) -> str | None:
    """Return the field that errors of the output's guide are about."""
    others = (name for name in ("tools", "thinking_token_budget") if getattr(body, name, None) is not None)
    return body_field(body) or next(others, None)


def _given(body: GenerationBody) -> Iterator[tuple[str, Callable[[], Guide]]]:
    match body.response_format:
        case AnyObject():
            yield "response_format", partial(Guide, "json_schema", _ANY_OBJECT)
        case SchemaFormat(json_schema=described):
            yield "response_format", partial(_schema, described.schema)
    regex, grammar = body.guided_regex, body.guided_grammar
    yield from _fields("guided_", body.guided_json, regex, body.guided_choice, grammar)
    if (outputs := body.structured_outputs) is not None:
        prefix = "structured_outputs."
        yield from _fields(prefix, outputs.json, outputs.regex, outputs.choice, outputs.grammar)
        if outputs.json_object:
            yield f"{prefix}json_object", partial(Guide, "json_schema", _ANY_OBJECT)


def _fields(
    prefix: str,
    schema: str | dict[str, Any] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> Iterator[tuple[str, Callable[[], Guide]]]:
    """Yield the fields that vLLM's two forms share."""
    if schema is not None:
        yield f"{prefix}json", partial(_schema, schema)
    if regex is not None:
        yield f"{prefix}regex", partial(Guide, "regex", regex)
    if choice is not None:
        yield f"{prefix}choice", partial(Guide.of_choices, choice)
    if grammar is not None:
        yield f"{prefix}grammar", partial(Guide, "ebnf_grammar", grammar)


def _schema(schema: str | dict[str, Any]) -> Guide:
    return Guide("json_schema", schema if isinstance(schema, str) else msgspec.json.encode(schema).decode())
