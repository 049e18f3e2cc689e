"""Family made of ``response_template``, in which ``transformers`` has the marks around parts of answers.

Its patterns are never matched with answers. A pattern counts as a mark if it is literal text, with or without
patterns for spaces around it.
"""

import itertools
import re
from typing import Any, Literal

import msgspec
from tokenizers import Tokenizer

from runner.chat.families.bare_json import GENERIC
from runner.chat.families.family import Family, Span
from runner.chat.families.markers import is_token, markers_of
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.named_calls import NamedCalls

_REASONING = ("reasoning_content", "thinking", "reasoning")
_ALL = "{content}"
_KEY = re.compile(r"\{(?:content\.)?(\w+)\}")
_SPACE = r"(?:\\[snrt][*+?]{0,2})*"
_TEXT = r"(?:\\\W|[^\\^$.|?*+()\[\]{}])*"
_PATTERN = re.compile(
    rf"{_SPACE}(?P<mark>{_TEXT}){_SPACE}"
    rf"(?:\(\?P<(?P<name>\w+)>(?:\\.|\[(?:\\.|[^\]\\])*\]|[^()\[\]\\])*\){_SPACE}(?P<after>{_TEXT}){_SPACE})?"
    r"(?:\|(?:\$|\\Z))?"
)
"""A literal mark or the end, or a mark before and one after the name of a function."""
_NESTING_OR_QUOTE = '"{}[]'
_IN_NAME = re.compile(r"[\w.:/\-]")
_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Halves of characters, which also stand for tokens."""
_MAX_MARK, _MAX_MARKS, _MAX_PATTERN, _MAX_REASON = 128, 16, 256, 200


class _Field(msgspec.Struct):
    open: str | list[str] = []
    open_pattern: str = ""
    close: str | list[str] = []
    close_pattern: str = ""
    content: str = "text"
    content_args: dict[str, Any] = {}
    repeats: bool = False
    transform: Any = None
    transform_each: bool = False


class _Template(msgspec.Struct):
    fields: dict[str, _Field]
    version: Literal[1] = 1


class _Unusable(Exception):
    """Error: no family can be made of a template."""


def read_response_template(found: object, tokenizer: Tokenizer) -> tuple[Family | None, str]:
    """Make a family of ``found``, the value in tokenizer_config.json, or tell why there is none."""
    if found is None:
        return None, ""
    try:
        fields = msgspec.convert(found, _Template).fields
        calls = _calls(fields["tool_calls"]) if "tool_calls" in fields else None
        thought = next((_spans(fields[name]) for name in _REASONING if name in fields), ())
        content = fields.get("content", _Field())
        wrappers = _spans(content) if content.open or content.open_pattern else ()
        if len(thought) > 1 or not (calls or thought):
            raise _Unusable("it has no marks of calls or reasoning, or several of reasoning")
        _check_marks(calls, (*thought, *wrappers), tokenizer)
    except (msgspec.ValidationError, _Unusable) as exc:
        return None, f"response_template in tokenizer_config.json is not used: {str(exc)[:_MAX_REASON]}"
    return Family("response-template", calls or GENERIC.calls, next(iter(thought), None), wrappers), ""


def _spans(field: _Field) -> tuple[Span, ...]:
    opens, closes = _marks(field.open, field.open_pattern), _marks(field.close, field.close_pattern)
    if not opens or not closes:
        raise _Unusable("no mark opens or closes reasoning or content")
    return tuple(Span(*marks) for marks in itertools.product(opens, closes))


def _calls(field: _Field) -> JsonCalls | NamedCalls:
    args, transform = field.content_args, field.transform
    if field.content != "json" or args.get("unquoted_keys") or args.get("string_delims"):
        raise _Unusable("its calls are not JSON")
    function = transform.get("function", transform) if isinstance(transform, dict) else transform
    names = [function.get("name"), function.get("arguments")] if isinstance(function, dict) else []
    end = next(iter(_marks(field.close, field.close_pattern)), "")
    header = _matched(field.open_pattern)
    if header["name"] is not None and names == [f"{{{header['name']}}}", _ALL]:
        begin, separator = _unescaped(header["mark"]), _unescaped(header["after"])
        if not begin or not separator or _IN_NAME.match(separator):
            raise _Unusable("the name of a call has no mark before or after it")
        return NamedCalls(begin, separator, end)
    begins = _marks(field.open, field.open_pattern)
    keys = [match[1] for name in names if isinstance(name, str) and (match := _KEY.fullmatch(name))]
    if function in (None, _ALL):
        keys = ["name", "arguments"]
    if not begins or len(keys) < 2:
        raise _Unusable("no mark opens calls, or their keys of a name and arguments are not known")
    is_list = field.transform_each or (transform is None and not field.repeats)
    return JsonCalls(
        begins, end, name_key=keys[0], arguments_key=keys[1], is_list=is_list, has_other_keys=True
    )


def _marks(literals: str | list[str], pattern: str) -> tuple[str, ...]:
    """Return the marks without whitespace around them, each once."""
    found = _matched(pattern)
    # NOTE: msgspec.Meta could check them, but can crash Python at its exit (msgspec's issue 717).
    marks = [*([literals] if isinstance(literals, str) else literals), _unescaped(found["mark"])]
    if len(marks) > _MAX_MARKS or any(len(each) > _MAX_MARK or _NO_TEXT.search(each) for each in marks):
        raise _Unusable("its marks are too many, too long or no text")
    if found["name"] is not None:
        raise _Unusable(f"a name stands in {pattern!r} that is not used")
    return tuple(dict.fromkeys(filter(None, map(str.strip, marks))))


def _matched(pattern: str) -> re.Match[str]:
    match = _PATTERN.fullmatch(pattern) if len(pattern) <= _MAX_PATTERN else None
    if match is None or _NO_TEXT.search(pattern):
        raise _Unusable(f"it is not literal: {pattern[:_MAX_PATTERN]!r}")
    return match


def _unescaped(pattern: str) -> str:
    return re.sub(r"\\(\W)", r"\1", pattern).strip()


def _check_marks(calls: JsonCalls | NamedCalls | None, spans: tuple[Span, ...], tokenizer: Tokenizer) -> None:
    """Raise _Unusable if a mark could be read as another, or as a value of JSON."""
    texts = {mark for each in spans for mark in (each.begin, each.end)}
    marks = tuple(sorted({*texts, *(() if calls is None else calls.markers)} - {""}))
    markers = markers_of(tokenizer, marks)
    written = [*map(markers.written, marks)]
    if any(a != b and b.startswith(a) and not is_token(a) for a in written for b in written):
        raise _Unusable("a mark begins with another one")
    end = "" if calls is None else markers.written(calls.end)
    if len(end) > 1 and end[0] in _NESTING_OR_QUOTE:
        raise _Unusable("the mark after calls begins like a value of JSON")
