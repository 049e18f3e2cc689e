"""The steps of decoding tokens to text, one class each, as machines that take their input bit by bit.

Each is what a decoder of the ``tokenizers`` library does to the whole list of tokens, split over any
number of ``push`` calls and one ``finish``. A stage keeps back only what later tokens can still
change. Up to where the tokens are fused, the strings given and returned are whole tokens; from there
on they are pieces of one text, cut anywhere.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from os.path import commonprefix
from typing import Protocol

from tokenizers.decoders import Decoder


class Stage(Protocol):
    """One step of decoding, with the state of one stream."""

    def push(self, tokens: list[str]) -> list[str]:
        """What is certain now, given these further tokens."""

    def finish(self) -> list[str]:
        """The rest, when no more tokens come; the stage is not used afterwards."""


class EachToken:
    """Transforms every token by itself."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self._transform = transform

    def push(self, tokens: list[str]) -> list[str]:
        return [self._transform(token) for token in tokens]

    def finish(self) -> list[str]:
        return []


class FirstAndLater:
    """Transforms the first token in one way and every later one in another."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._next = first
        self._later = later

    def push(self, tokens: list[str]) -> list[str]:
        transformed = []
        for token in tokens:
            transformed.append(self._next(token))
            self._next = self._later
        return transformed

    def finish(self) -> list[str]:
        return []


class ByteFallback:
    """Turns each run of byte tokens (``<0xE4>``) into its text, or, if not UTF-8, into one U+FFFD per byte.

    A run counts as a whole: one wrong byte spoils its valid characters too. So nothing of a run is
    certain before the token after it, except that a run already spoilt stays so.
    """

    def __init__(self) -> None:
        self._run_length = 0
        self._is_spoilt = False
        self._characters: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")

    def push(self, tokens: list[str]) -> list[str]:
        if not self._run_length and _BYTE_TOKENS.keys().isdisjoint(tokens):
            return tokens
        decoded: list[str] = []
        for token in tokens:
            byte = _BYTE_TOKENS.get(token)
            if byte is None:
                decoded += self._end_run()
                decoded.append(token)
            else:
                decoded += self._extend_run(byte)
        return decoded

    def finish(self) -> list[str]:
        return self._end_run()

    def _extend_run(self, byte: bytes) -> list[str]:
        self._run_length += 1
        return ["\ufffd"] if self._is_spoilt else self._decode(byte, is_end=False)

    def _end_run(self) -> list[str]:
        if not self._run_length:
            return []
        rest = [] if self._is_spoilt else self._decode(b"", is_end=True) or ["".join(self._characters)]
        self._run_length = 0
        self._is_spoilt = False
        self._characters.clear()
        self._decoder.reset()
        return rest

    def _decode(self, encoded: bytes, *, is_end: bool) -> list[str]:
        """Nothing while the run is valid; all its replacement characters when it turns out not to be."""
        try:
            self._characters.append(self._decoder.decode(encoded, is_end))
        except UnicodeDecodeError:
            self._is_spoilt = True
            return ["\ufffd"] * self._run_length
        return []


# Hexadecimal digits of either case; Rust's integer parser also takes a sign in place of the first.
_BYTE_TOKENS = {
    f"<0x{high}{low}>": bytes([int(high + low, 16)])
    for high in "+0123456789abcdefABCDEF"
    for low in "0123456789abcdefABCDEF"
}


class Utf8:
    """Decodes bytes, given as the characters U+0000 to U+00FF, with U+FFFD for what is not UTF-8.

    Keeps back an incomplete character at the end (at most 3 bytes).
    """

    def __init__(self) -> None:
        self._incomplete = b""

    def push(self, tokens: list[str]) -> list[str]:
        characters = "".join(tokens)
        if not self._incomplete and characters.isascii():
            return [characters]
        encoded = self._incomplete + characters.encode("latin-1")
        text, used = codecs.utf_8_decode(encoded, "replace", False)
        self._incomplete = encoded[used:]
        return [text]

    def finish(self) -> list[str]:
        return [self._incomplete.decode("utf-8", "replace")]


class SuffixToSpace:
    """Replaces the end-of-word suffix by a space, in the last token by nothing. Must be the last stage.

    Keeps back only where these two differ: the last token's text from its first suffix on.
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._if_more_follow = ""
        self._if_last = ""

    def push(self, tokens: list[str]) -> list[str]:
        certain: list[str] = []
        for token in tokens:
            certain.append(self._if_more_follow)
            alternatives = [token.replace(self._suffix, " "), token.replace(self._suffix, "")]
            shared = commonprefix(alternatives)
            certain.append(shared)
            self._if_more_follow, self._if_last = (text[len(shared) :] for text in alternatives)
        return certain

    def finish(self) -> list[str]:
        return [self._if_last]


class SkipRepeated:
    """Transforms every token that differs from the one before it; drops the others and what becomes empty."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self._transform = transform
        self._previous: str | None = None

    def push(self, tokens: list[str]) -> list[str]:
        kept = []
        for token in tokens:
            if token != self._previous:
                self._previous = token
                kept.append(self._transform(token))
        return [token for token in kept if token]

    def finish(self) -> list[str]:
        return []


class ReplaceInText:
    """Replaces a string wherever it stands in the text; keeps back an end that could be its beginning."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content
        self._held = ""

    def push(self, tokens: list[str]) -> list[str]:
        *replaced, rest = "".join([self._held, *tokens]).split(self._pattern)
        held_length = self._beginning_at_end(rest)
        self._held = rest[len(rest) - held_length :]
        return [self._content.join([*replaced, rest[: len(rest) - held_length]])]

    def finish(self) -> list[str]:
        return [self._held]

    def _beginning_at_end(self, text: str) -> int:
        """The length of the pattern's longest beginning that ``text`` ends with, in characters."""
        for length in range(len(self._pattern) - 1, 0, -1):
            if text.endswith(self._pattern[:length]):
                return length
        return 0


class StripText:
    """Takes up to ``start`` characters ``content`` off the text's beginning, up to ``stop`` off its end."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._start = start
        self._stop = stop
        self._held = ""

    def push(self, tokens: list[str]) -> list[str]:
        text = "".join(tokens)
        if self._start and text:
            head = text[: self._start]
            stripped = len(head) - len(head.lstrip(self._content))
            self._start = self._start - stripped if stripped == len(head) else 0
            text = text[stripped:]
        if self._stop:
            text = self._held + text
            held_length = min(len(text) - len(text.rstrip(self._content)), self._stop)
            self._held = text[len(text) - held_length :]
            text = text[: len(text) - held_length]
        return [text]

    def finish(self) -> list[str]:
        return []


class DecodeAtEnd:
    """Keeps all tokens to the end and gives them to the decoder: exact for any decoder, but no stream."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._tokens: list[str] = []

    def push(self, tokens: list[str]) -> list[str]:
        self._tokens += tokens
        return []

    def finish(self) -> list[str]:
        return [self._decoder.decode(self._tokens)]
