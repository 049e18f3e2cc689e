"""Values that models write as text, as JSON."""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any

from runner.chat.families.syntax.schema_types import ANY, STRING, allows, types_of

_QUOTES = "\"'"
_MAX_NESTED = 1 << 15
"""Limit of a literal's characters if it is not a string: parsing takes up to 50 ms."""
_JSON_NAMES = {"true": True, "false": False, "null": None}
_PYTHON_NAMES = {"True": True, "False": False, "None": None}
_STRING = re.compile(r""""(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z)""", re.DOTALL)
_LINE_BREAK = re.compile(r"(?<!\\)\n")
"""Line breaks that models write in strings of Python, which have none."""
_BITS = {"0": False, "1": True}


def json_of(text: str, schema: Any, root: Any, *, is_json: bool = False) -> str:
    """Return as JSON the value that ``text`` means by a schema, whose definitions are in ``root``.

    Text that is no value of the schema's types is a string. ``is_json``: strings are written as JSON, too.
    """
    types = types_of(schema, root)
    has_strings = STRING in types
    readings = list(_readings(text.strip(), types))
    if has_strings and types != ANY and not is_json:
        readings = [each for each in readings if not isinstance(each[1], str)]
    for made, value in readings:
        if allows(schema, value, root):
            return made
    return encode_basestring(text) if has_strings or not readings else readings[0][0]


def literal_json(literal: str) -> str:
    """Return a literal of JSON (as in guided answers) or of Python as JSON, any other text as a string."""
    if _json_value(literal) is not _NO_VALUE:
        return literal
    made = _python_json(literal)
    return json.dumps(literal, ensure_ascii=False) if made is None else made


def _readings(text: str, types: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield what ``text`` can mean, the likeliest first: JSON and its value."""
    value = _json_value(text)
    if value is not _NO_VALUE:
        yield text, value
        if isinstance(value, str) and STRING not in types:
            yield from _readings(value.strip(), types)
    name = text if STRING in types else text.capitalize()
    if name in _PYTHON_NAMES or name == "Null":
        value = _PYTHON_NAMES.get(name)
        yield json.dumps(value), value
    if text in _BITS and "boolean" in types and STRING not in types:
        yield json.dumps(_BITS[text]), _BITS[text]
    if value is _NO_VALUE and text[:1] in ("{", "[", "("):
        value = _json_value(text, strict=False)
        made = _python_json(text) if value is _NO_VALUE else json.dumps(value, ensure_ascii=False)
        if made is not None:
            yield made, json.loads(made)


_NO_VALUE = object()


def _json_value(text: str, *, strict: bool = True) -> Any:
    """Return the value of a text of JSON, or ``_NO_VALUE``. ``strict``: without line breaks in strings."""
    try:
        return json.loads(text, strict=strict, parse_constant=_reject, parse_float=_finite)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _reject(constant: str) -> None:
    raise ValueError(constant)


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(number)
    return value


def _python_json(literal: str) -> str | None:
    """Return a literal of Python as JSON; None if it is none."""
    if len(literal) > _MAX_NESTED and literal[0] not in _QUOTES:
        return None
    literal = _STRING.sub(lambda match: _LINE_BREAK.sub(r"\\n", match[0]), literal)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of unknown escapes.
            value = ast.literal_eval(_JsonNames().visit(ast.parse(literal, mode="eval")))
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Escapes can make halves of characters.
        is_whole = made == made.encode(errors="replace").decode()
        return made if is_whole else json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


class _JsonNames(ast.NodeTransformer):
    """Constants of JSON, which models write among literals of Python, too."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node
