"""Steps of incremental decoding, one class each: state machines that take their input in pieces.

Each stage gives what a decoder of the ``tokenizers`` library gives for the whole list of tokens, split over
any number of ``push`` calls and one ``finish``. A stage holds back only what later tokens can still change.
"""

import codecs
from collections.abc import Callable
from os.path import commonprefix
from typing import Protocol

from tokenizers.decoders import Decoder

SPACE = "\u2581"
"""Space in SentencePiece's tokens."""


class Stage(Protocol):
    """One step of decoding, with the state of one stream."""

    def push(self, tokens: list[str]) -> list[str]:
        """Take tokens and return the output that they make certain."""

    def finish(self) -> list[str]:
        """End a run of tokens and return the rest of its output. Another run may follow."""

    def settle(self) -> list[str]:
        """End the prompt, whose text later tokens do not change. Return what is complete of the rest."""

    @property
    def drops_space(self) -> bool:
        """True if the next text would lose a space at its beginning."""

    @property
    def incomplete(self) -> str:
        """Text that decoding shows for the bytes of a character that has only begun."""

    @property
    def num_held(self) -> int:
        """Number of complete characters that are held back."""


class NothingHeld:
    """Base of the stages that hold nothing back."""

    drops_space = False
    incomplete = ""
    num_held = 0

    def finish(self) -> list[str]:
        return []

    def settle(self) -> list[str]:
        return []


class FirstAndLater(NothingHeld):
    """Stage that transforms the first token in one way and every later one in another."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._next = first
        self._later = later

    def push(self, tokens: list[str]) -> list[str]:
        transformed = []
        for token in tokens:
            transformed.append(self._next(token))
            self._next = self._later
        return transformed

    @property
    def drops_space(self) -> bool:  # type: ignore[override]
        return self._next is not self._later and not self._next(SPACE)


class ByteFallback:
    """Stage that turns each run of byte tokens (``<0xE4>``) into text or, if not UTF-8, a U+FFFD per byte.

    One invalid byte makes the whole run invalid, its valid characters included. So a run is held back until
    the token after it, unless it is known to be invalid.
    """

    def __init__(self) -> None:
        self._run_length = 0
        self._is_invalid = False
        self._characters: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")

    drops_space = False

    def push(self, tokens: list[str]) -> list[str]:
        if not self._run_length and BYTE_TOKENS.keys().isdisjoint(tokens):
            return tokens
        decoded: list[str] = []
        for token in tokens:
            byte = BYTE_TOKENS.get(token)
            if byte is None:
                decoded += self.finish()
                decoded.append(token)
            else:
                self._run_length += 1
                decoded += ["\ufffd"] if self._is_invalid else self._decode(byte, is_end=False)
        return decoded

    def finish(self) -> list[str]:
        """End the run and return its text."""
        if not self._run_length:
            return []
        rest = [] if self._is_invalid else self._decode(b"", is_end=True) or ["".join(self._characters)]
        self._run_length = 0
        self._is_invalid = False
        self._characters.clear()
        self._decoder.reset()
        return rest

    def settle(self) -> list[str]:
        """End the prompt; return complete characters, which bytes after the prompt do not make invalid."""
        text = "".join(self._characters)
        self._characters.clear()
        if not self._is_invalid:
            self._run_length = len(self._begun)
        return [text] if text else []

    @property
    def incomplete(self) -> str:
        return "" if self._is_invalid else "\ufffd" * len(self._begun)

    @property
    def num_held(self) -> int:
        return sum(map(len, self._characters))

    @property
    def _begun(self) -> bytes:
        return self._decoder.getstate()[0]

    def _decode(self, encoded: bytes, *, is_end: bool) -> list[str]:
        """Return nothing while the run is valid, and its replacement characters once it is invalid."""
        try:
            self._characters.append(self._decoder.decode(encoded, is_end))
        except UnicodeDecodeError:
            self._is_invalid = True
            self._characters.clear()
            return ["\ufffd"] * self._run_length
        return []


# Hexadecimal digits of either case; Rust's integer parser also accepts a sign in place of the first.
BYTE_TOKENS = {
    f"<0x{high}{low}>": bytes([int(high + low, 16)])
    for high in "+0123456789abcdefABCDEF"
    for low in "0123456789abcdefABCDEF"
}


class Utf8(NothingHeld):
    """Decoder of bytes, given as the characters U+0000 to U+00FF, with U+FFFD for what is not UTF-8.

    It holds back an incomplete character at the end (at most 3 bytes).
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
        rest, self._incomplete = self._incomplete, b""
        return [rest.decode("utf-8", "replace")]

    @property
    def incomplete(self) -> str:  # type: ignore[override]
        return self._incomplete.decode("utf-8", "replace")


class StripStart(NothingHeld):
    """Stage that removes up to ``count`` characters ``content`` from the beginning of the text."""

    def __init__(self, content: str, count: int) -> None:
        self._content = content
        self._count = count

    def push(self, tokens: list[str]) -> list[str]:
        text = "".join(tokens)
        if self._count and text:
            head = text[: self._count]
            stripped = len(head) - len(head.lstrip(self._content))
            self._count = self._count - stripped if stripped == len(head) else 0
            text = text[stripped:]
        return [text]

    @property
    def drops_space(self) -> bool:  # type: ignore[override]
        return self._count > 0 and self._content == " "


class DecodeAtEnd(NothingHeld):
    """Stage that holds all tokens back and gives them to the decoder at the end: exact for any decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._tokens: list[str] = []
        self._prompt = ""
        """Text that the last ``settle`` returned."""

    def push(self, tokens: list[str]) -> list[str]:
        self._tokens += tokens
        return []

    def finish(self) -> list[str]:
        text = self._decoder.decode(self._tokens)
        shared = commonprefix([self._prompt, text])
        self._tokens, self._prompt = [], ""
        return [text[len(shared) :]]

    def settle(self) -> list[str]:
        self._prompt = self._decoder.decode(self._tokens)
        return [self._prompt]
