"""What single tokens are as text and as bytes, for log probabilities: a token may be part of a character."""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from runner.detokenizer.byte_level import bytes_of_token

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""SentencePiece's."""


class TokenTexts:
    """The tokens of one tokenizer; each is worked out once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        state = tokenizer.decoder.__getstate__().decode() if tokenizer.decoder is not None else ""
        self._is_byte_level = '"ByteLevel"' in state
        self._has_byte_tokens = '"ByteFallback"' in state
        self._known: dict[int, tuple[str, list[int]]] = {}

    def find(self, token_id: int) -> tuple[str, list[int]]:
        """Its text, with U+FFFD for what is no whole character, and its bytes."""
        if token_id not in self._known:
            content = self._bytes(token_id)
            self._known[token_id] = (content.decode(errors="replace"), list(content))
        return self._known[token_id]

    def _bytes(self, token_id: int) -> bytes:
        token: str = self._tokenizer.id_to_token(token_id) or ""
        if self._is_byte_level:
            return bytes_of_token(token).encode("latin-1")
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return token.replace(_SPACE, " ").encode()
