"""Grammars in GBNF, as llama.cpp and XGrammar write them, for llguidance.

llguidance converts GBNF to its Lark. It writes some escapes as Lark can't read them (``\\u00e9``, ``\\[``),
copies control characters, takes a grammar for Lark if one of its rules has the name ``start``, and has line
breaks left out of ``.``.
"""

import re

from llguidance import grammar_from

_IS_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_WORD = re.compile(r'#[^\r\n]*|"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|[\w-]+|\.', re.DOTALL)
"""A comment, a text or a class of characters, maybe without its end, the name of a rule, or any character."""
_CODE = r"x([0-9a-fA-F]{2})|u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})"
_CHARACTER = re.compile(rf"\\(?:{_CODE}|([^\w\s\0-\x1f\x7f]|[bf])|[\0-\x1f\x7f])|[\0-\x1f\x7f]")
_OF_JSON = {"b": "\b", "f": "\f"}
_OTHER_WORDS = {"start": "rule-of-the-name-start", ".": "[\\x00-\U0010ffff]"}


def llguidance_grammar(text: str) -> str:
    """Convert a grammar, in GBNF or in llguidance's Lark. Raises ValueError for one that is not valid."""
    converted: str = grammar_from("ebnf", text if _IS_LARK.search(text) else _WORD.sub(_respelled, text))
    return converted


def _respelled(word: re.Match[str]) -> str:
    if word[0][0] in '"[':
        return _CHARACTER.sub(_spelled, word[0])
    return _OTHER_WORDS.get(word[0], word[0])


def _spelled(found: re.Match[str]) -> str:
    """Spell a character as both the strings and the classes of Lark have it."""
    if len(found[0]) == 2 and found[4] is None:
        return found[0]  # No escape of GBNF: it is refused.
    code = found[1] or found[2] or found[3]
    character = chr(int(code, 16)) if code else _OF_JSON.get(found[4], found[4]) or found[0]
    return character if character > "\x7f" else f"\\x{ord(character):02x}"
