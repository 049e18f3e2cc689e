"""The byte-level alphabet of GPT-2, in which each character of a token stands for one byte."""

from __future__ import annotations


def bytes_of_token(token: str) -> str:
    """A byte-level token's bytes as characters U+0000 to U+00FF; of any other token, its UTF-8."""
    if all(ord(character) in _BYTE_CHARACTERS for character in token):
        return token.translate(_BYTE_CHARACTERS)
    return token.encode().decode("latin-1")


def _byte_characters() -> dict[int, str]:
    """The byte-level alphabet: a character's code point -> its byte, as the character of that number.

    Printable bytes stand for themselves, the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {256 + n: chr(byte) for n, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()
