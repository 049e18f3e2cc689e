"""A chat's form as one grammar of llguidance: its rules, and the client's schemas and grammars as parts."""

import re
from collections.abc import Callable

from llguidance import regex_to_lark

from errors.requests import InvalidGuide
from runner.engines.guides.schemas import schema_in
from runner.engines.protocol.messages import ChatForm, Guide

_HEAD = "%llguidance {}"
_TOKEN = re.compile(r"<\[(\d+)\]>")
_TEST_TOKENS = range(0xF8, 0x100)
"""Bytes that no text has: they stand for markers where a guide is checked without a vocabulary."""
_WORD = re.compile(r""""(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[a-z]*|(?://|\#)[^\n]*|[A-Za-z_][\w-]*|%""")
"""A word of Lark: a text, regular expression, comment, name of a rule, or beginning of a directive."""


def form_grammar(form: ChatForm, grammar_of: Callable[[Guide], str]) -> tuple[str, str]:
    """Return the grammar, and the one to check. ``grammar_of`` makes that of a part, which may be invalid."""
    parts = []
    known: dict[Guide, int] = {}
    for index, (_, part) in enumerate(form.parts):
        first = known.setdefault(part, index)
        name = f"part_{index}"
        parts.append(f"{name}: part_{first}" if first < index else _part(name, part, grammar_of(part)))
    tested = _TOKEN.sub(lambda match: f"<[{_TEST_TOKENS[int(match[1]) % len(_TEST_TOKENS)]}]>", form.rules)
    return _joined(form.rules, parts), _joined(tested, parts)


def check_parts(form: ChatForm, grammar_of: Callable[[Guide], str]) -> None:
    """Raise InvalidGuide for the first part that is wrong by itself."""
    for place, part in form.parts:
        try:
            grammar_of(part)
        except InvalidGuide as error:
            raise InvalidGuide(guide_type=part.type, reason=f"{place}: {error.facts['reason']}") from error


def _joined(rules: str, parts: list[str]) -> str:
    return "\n".join([_HEAD, rules, *parts])


def _part(name: str, guide: Guide, grammar: str) -> str:
    match guide.type:
        case "json" | "json_schema":
            return f"{name}: %json {schema_in(grammar)}"
        case "regex":
            return f"{name}: /{regex_to_lark(guide.text, 'd')}/"
    return _renamed(grammar.removeprefix(_HEAD), name)


def _renamed(grammar: str, name: str) -> str:
    """Return a grammar whose rules have names of their own; ``start`` has ``name``. Raises InvalidGuide."""

    def new(match: re.Match[str]) -> str:
        word = match[0]
        if word == "%":
            reason = "it is the guide of a chat's content, which can't have % directives; leave them out"
            raise InvalidGuide(guide_type="ebnf_grammar", reason=reason)
        if not (word[0].isalpha() or word[0] == "_"):
            return word
        if word == "start":
            return name
        return f"{name.upper() if word.lstrip('_')[:1].isupper() else name}_{word}"

    return _WORD.sub(new, grammar)
