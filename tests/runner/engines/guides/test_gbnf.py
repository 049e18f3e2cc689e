"""Grammars in GBNF mean what they mean to llama.cpp, however they are spelled."""

import time
from contextlib import suppress

import pytest

pytest.importorskip("llguidance", reason="is in the engine environment")

from llguidance import LLTokenizer

from errors.requests import InvalidGuide
from runner.engines.guides.grammar import grammar_of, matcher
from runner.engines.protocol.messages import Guide

BYTES = LLTokenizer("byte")


def allows(guide: Guide, text: str) -> bool:
    found = matcher(BYTES, grammar_of(guide, BYTES))
    tokens = list(text.encode())
    return found.try_consume_tokens(tokens) == len(tokens) and bool(found.is_accepting())


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\x41\u00e9\U0001F336"', "Aé🌶"),
        (r"root ::= [\x41-\x43] [\u00e9-\u00ff] [\U0001F336]", "Bü🌶"),
        (r'root ::= "\[\"\\\]" "\t\r\n"', '["\\]\t\r\n'),
        (r"root ::= [\[\]\-\^\\/]+", "[-]^\\/"),
        ('root ::= [\t ] "a\n\tb\x7f"', "\ta\n\tb\x7f"),
        (r'root ::= "\x00" [^\x01-\x1f]', "\x00a"),
        (r'root ::= "\\u00e9"', r"\u00e9"),
        ('root ::= start "start" # start "[\nstart ::= "a"', "astart"),
        ('# "\nroot ::= "a#b" [#"]', 'a#b"'),
        ('root ::= . x "." [.]\nx ::= .{2}', "a\n🌶.."),
        ('start: "a" /\\d/', "a1"),
    ],
)
def test_a_grammar_allows_its_text(grammar: str, text: str) -> None:
    guide = Guide("ebnf_grammar", grammar)
    assert allows(guide, text)
    assert not allows(guide, f"{text}!")


@pytest.mark.parametrize(
    "text", [*map(chr, range(32)), "\x7f", "\x85", "\u2028", "start", r"\u00e9", '["]', "🌶"]
)
def test_a_choice_may_have_any_character(text: str) -> None:
    guide = Guide.of_choices(["other", text])
    assert allows(guide, text)
    assert not allows(guide, f"{text}x")


@pytest.mark.parametrize(
    "grammar",
    ['root ::= "a', "root ::= [a", r'root ::= "\ud83d"', r'root ::= "\U00110000"', 'root ::= "a\\\nb"'],
)
def test_a_grammar_that_is_not_valid_is_refused(grammar: str) -> None:
    with pytest.raises(InvalidGuide):
        grammar_of(Guide("ebnf_grammar", grammar), BYTES)


@pytest.mark.parametrize("word", ["[", '"', "\\", "#", '"\\', "[\\"])
def test_the_longest_grammar_takes_no_time(word: str) -> None:
    start_s = time.thread_time()
    with suppress(InvalidGuide):
        grammar_of(Guide("ebnf_grammar", "root ::= " + word * (16_000 // len(word))), BYTES)
    assert time.thread_time() - start_s < 1
