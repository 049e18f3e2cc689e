"""One-line reasons for invalid guides, with the place, from the messages of llguidance."""

import re
import time
from collections.abc import Callable, Iterator

from runner.engines.guides.schemas import LISTS, MANY, ONE, Schema

_INDENT = 4
_CARET = re.compile(r"^ *\^+ *$")
_MAX_REASON = 300
_SEARCH_S = 0.1
"""Limit of the search for the invalid part of a schema, in processor time."""
_COMPLEX = re.compile(r"(?i)fuel|too (many|big|large|complex)|max is|lexer precomputation")
REMEDY = "use fewer or smaller repetitions, alternatives, patterns, optional properties and multiples"


def first_line(text: str) -> str:
    """Return the first line, short and without a full stop."""
    line = next((each.strip() for each in text.splitlines() if each.strip()), "no reason given")
    return (line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]}...").rstrip(".")


def complexity_reason(error: str) -> str | None:
    """Return the reason, if the error is a limit of llguidance; else None."""
    text = first_line(error)
    return f"it is too complex ({text}); {REMEDY}" if _COMPLEX.search(text) else None


def regex_reason(text: str) -> str:
    """Return the reason and the character position, from a parse error with a caret under the place."""
    lines = text.splitlines()
    what = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if what is None:
        return first_line(text)
    caret = next((line for line in lines if _CARET.match(line)), None)
    place = "" if caret is None else f"at character {caret.index('^') - _INDENT + 1}: "
    return f"{place}{first_line(what)}"


def schema_reason(schema: Schema, error: str, fault: Callable[[Schema], str]) -> str:
    """Return the error, with the place of the innermost part of the schema that has it by itself.

    ``fault`` returns the error of a schema, or an empty string.
    """
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    deadline_s = time.process_time() + _SEARCH_S
    place, part, is_innermost = "#", schema, False
    while not is_innermost:
        is_innermost = True
        for step, child in _parts(part):
            if time.process_time() > deadline_s:
                return f"at {place} or below: {_explained(error)}"
            if fault({**shared, **child}) == error:
                place, part, is_innermost = f"{place}/{step}", child, False
                break
    return f"at {place}: {_explained(error)}"


def _explained(error: str) -> str:
    if error.startswith("oneOf constraints"):
        return "oneOf with branches that may overlap is not supported, but anyOf is"
    return regex_reason(error.replace("Unimplemented keys", "keywords that are not supported"))


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the direct subschemas, each with its step of a JSON pointer."""
    for key in LISTS:
        if isinstance(parts := schema.get(key), list):
            yield from (
                (f"{key}/{index}", part) for index, part in enumerate(parts) if isinstance(part, dict)
            )
    for key in ONE:
        if isinstance(part := schema.get(key), dict):
            yield key, part
    for key in MANY:
        if isinstance(parts := schema.get(key), dict):
            for name, part in parts.items():
                if isinstance(part, dict):
                    step = name.replace("~", "~0").replace("/", "~1")
                    yield f"{key}/{step}", part
