"""What the decoders do to one token by itself.

NOTE: all as the ``tokenizers`` library does it, oddities included, because the promise is equality
with its ``decode``; the tests hold each against the library.
"""

from __future__ import annotations

from collections.abc import Callable

from runner.detokenizer.stages import StripText

Transform = Callable[[str], str]


def bytes_of_token(token: str) -> str:
    """A byte-level token's bytes as characters U+0000 to U+00FF; of any other token, its UTF-8."""
    if all(ord(character) in _BYTE_CHARACTERS for character in token):
        return token.translate(_BYTE_CHARACTERS)
    return token.encode().decode("latin-1")


def _byte_characters() -> dict[int, str]:
    """The byte-level alphabet: a character's code point -> its byte, as the character of that number.

    Bytes that print stand for themselves, the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {256 + n: chr(byte) for n, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()


def strip(token: str, *, content: str, start: int, stop: int) -> str:
    """The token without up to ``start`` and ``stop`` characters ``content`` at its ends."""
    (kept,) = StripText(content, start, stop).push([token])
    return kept


def metaspace(replacement: str, prepend_scheme: str) -> tuple[Transform, Transform]:
    """For the first token, which keeps no space at all unless none is ever put there, and for later ones."""

    def remove(token: str) -> str:
        return token.replace(replacement, "")

    def to_space(token: str) -> str:
        return token.replace(replacement, " ")

    return (to_space if prepend_scheme == "never" else remove), to_space


def word_piece(prefix: str, has_cleanup: bool) -> tuple[Transform, Transform]:
    """For the first token, and for later ones, each a word of its own unless it begins with ``prefix``."""

    def first(token: str) -> str:
        return _cleanup(token) if has_cleanup else token

    def later(token: str) -> str:
        return first(token[len(prefix) :] if token.startswith(prefix) else f" {token}")

    return first, later


def ctc(pad_token: str, word_delimiter: str, has_cleanup: bool) -> Transform:
    def transform(token: str) -> str:
        text = token.replace(pad_token, "")
        return _cleanup(text).replace(word_delimiter, " ") if has_cleanup else text

    return transform


def _cleanup(token: str) -> str:
    """Undo what splitting off punctuation and English contractions did, in the library's order."""
    for spaced, closed in _CLEANUP:
        token = token.replace(spaced, closed)
    return token


_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
