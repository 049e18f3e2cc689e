"""Guides as grammars of llguidance, or the reason why one is invalid or too complex."""

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from errors.requests import InvalidGuide
from runner.engines.guides.chat_form import check_parts, form_grammar
from runner.engines.guides.errors import REMEDY, complexity_reason, first_line, regex_reason, schema_reason
from runner.engines.guides.gbnf import llguidance_grammar
from runner.engines.guides.schemas import Schema, followed
from runner.engines.protocol.messages import ANY_JSON, ChatForm, Guide

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_LIMITS = LLParserLimits(
    # Each takes 1 to 2 kB.
    max_lexer_states=10_000,
    # Limit of one mask. The worst known guides take 15 ms for it.
    step_lexer_fuel=100_000,
    # Likewise: 53 ms. A grammar of 150 statements needs 4,000.
    step_max_items=10_000,
    verbose_errors=False,
)
_FIRST_MASK_S = 0.05
"""Limit of processor time. Ordinary guides take 1 ms; an output's later masks are limited together."""
_WHITESPACE = r"\n?[ ]{0,16}"
"""Whitespace between parts of JSON. Without a limit, small models generate spaces until ``max_tokens``."""


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    return LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)


def check(guide: Guide, compiled: LLMatcher, reason: Callable[[str], str] = first_line) -> float:
    """Check a guide. Return the processor time of its first mask, in seconds.

    Raises InvalidGuide, also for a guide that allows no token.
    """
    if error := compiled.get_error():
        raise InvalidGuide(guide_type=guide.type, reason=complexity_reason(error) or reason(error))
    first = compiled.deep_copy()
    start_s = time.thread_time()
    first.compute_bitmask()
    spent_s = time.thread_time() - start_s
    if first.is_error():
        error = first.get_error()
        cause = complexity_reason(error) or f"no output matches it ({first_line(error)})"
        raise InvalidGuide(guide_type=guide.type, reason=cause)
    if spent_s > _FIRST_MASK_S:
        cause = f"its first token takes more than {_FIRST_MASK_S * 1e3:g} ms; {REMEDY}"
        raise InvalidGuide(guide_type=guide.type, reason=cause)
    return spent_s


def grammar_of(guide: Guide, tokenizer: LLTokenizer) -> str:
    """Return the grammar of a valid guide. Raises InvalidGuide."""
    if guide.type != "json" and not guide.text.strip():
        raise InvalidGuide(guide_type=guide.type, reason="it is empty")
    match guide.type:
        case "json":
            return _schema_grammar(ANY_JSON)
        case "json_schema":
            return _checked_schema(guide, tokenizer)
        case "regex":
            check(guide, matcher(tokenizer, LLMatcher.grammar_from_regex(guide.text)), regex_reason)
            # The regex is valid. Compile it again with \d for the ten ASCII digits.
            grammar = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(guide.text, 'd')}/")
        case "ebnf_grammar":
            grammar = _converted(guide)
        case "chat_form":
            return _form_grammar(guide, tokenizer)
    check(guide, matcher(tokenizer, grammar))
    return str(grammar)


def _form_grammar(guide: Guide, tokenizer: LLTokenizer) -> str:
    form = msgspec.json.decode(guide.text, type=ChatForm)
    try:
        grammar, tested = form_grammar(form, _unchecked)
        check(guide, matcher(tokenizer, tested))
    except (InvalidGuide, ValueError):
        # Only now each part alone, which takes longer than the whole.
        check_parts(form, lambda part: grammar_of(part, tokenizer))
        raise
    return grammar


def _unchecked(guide: Guide) -> str:
    """Return the grammar of a guide. Raises InvalidGuide or ValueError for some invalid guides."""
    if guide.type == "ebnf_grammar":
        return _converted(guide)
    return "" if guide.type == "regex" else _schema_grammar(guide.text or ANY_JSON)


def _checked_schema(guide: Guide, tokenizer: LLTokenizer) -> str:
    schema = _read_schema(guide.text)

    def fault(part: Schema) -> str:
        """Return the error of a schema, or an empty string."""
        error: str = matcher(tokenizer, _grammar_of_schema(part)).get_error()
        return error

    grammar = _grammar_of_schema(schema)
    check(guide, matcher(tokenizer, grammar), lambda error: schema_reason(schema, error, fault))
    return grammar


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of 64 bits")
    return number


def _read_schema(text: str) -> Schema:
    """Return the schema as llguidance gets it. Raises InvalidGuide."""

    try:
        schema = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if isinstance(schema, dict):
            return cast(Schema, followed(schema))
        reason = "a schema must be a JSON object"
    except ValueError as exc:
        reason = f"it is not JSON: {exc}"
    except RecursionError:
        reason = "it is nested too deeply"
    raise InvalidGuide(guide_type="json_schema", reason=reason)


def _schema_grammar(text: str) -> str:
    return _grammar_of_schema(_read_schema(text))


def _grammar_of_schema(schema: Schema) -> str:
    # NOTE: override options for llguidance in the schema ("x-guidance"), which could produce invalid JSON.
    overrides: JsonCompileOptions = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": _WHITESPACE,
        "coerce_one_of": False,
        "lenient": False,
    }
    grammar: str = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides)
    return grammar


def _converted(guide: Guide) -> str:
    try:
        return llguidance_grammar(guide.text)
    except ValueError as exc:
        reason = first_line(str(exc).removeprefix("Failed to convert the grammar from GBNF to Lark: "))
        raise InvalidGuide(guide_type=guide.type, reason=reason) from exc
