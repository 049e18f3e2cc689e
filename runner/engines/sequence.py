"""One request of an engine that samples here: its output, and the rules that end or restrict it.

The rules are stop words, bad words, ``min_tokens`` and guides. The module is pure Python, without tensors.
"""

import hashlib
import secrets
import struct
from typing import TYPE_CHECKING

from errors.coded_error import CodedError
from runner.engines.protocol.messages import FinishReason, Submit, TokenLogProb
from runner.engines.protocol.words import Words

if TYPE_CHECKING:
    from runner.engines.guides.follow import Follower, Mask

_SEED_BITS = 64


class Sequence:
    """A running request. ``tokens`` are prompt and output together."""

    def __init__(self, request: Submit, follower: "Follower | None" = None) -> None:
        """Initialize. ``follower`` follows the request's guide."""
        self.request = request
        self.follower = follower
        self.error: CodedError | None = None
        """Error, for example of its guide. Set instead of ``finish_reason``."""
        self.tokens = list(request.input_ids)
        seed = request.sampling.seed
        self._seed = secrets.randbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        self.is_cancelled = False
        self.cached_tokens = 0
        """Number of tokens: see ``messages.Cached``."""
        self.finish_reason: FinishReason | None = None
        self._stop_words = Words(request.stop_words)
        self._bad_words = Words(request.bad_words)
        self.log_probs: list[TokenLogProb] = []
        """Log probabilities of tokens that are chosen but not delivered yet, if the request asks for them."""

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.input_ids)

    @property
    def draw_key(self) -> int:
        """Hash the seed and the position of the token to draw into a signed integer of 64 bits."""
        text = struct.pack("<QQ", self._seed, self.num_generated)
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)

    def append(self, token: int) -> None:
        """Add the next output token. Set ``finish_reason`` if it is the last one."""
        self.tokens.append(token)
        if token == self.request.end_id:
            self.finish_reason = "end"
            return
        if self.follower is not None:
            self.follower.take(token)
        if self._stop_words.end(self.tokens, start=len(self.request.input_ids)):
            self.finish_reason = "stop"
        elif self.follower is not None and self.follower.is_complete:
            self.finish_reason = "end"
        elif self.num_generated >= self.request.max_tokens:
            self.finish_reason = "length"

    def forbidden(self) -> list[int]:
        """Return the tokens that must not come next.

        A bad word may begin in the prompt, as in TensorRT-LLM; a stop word is found only in the output.
        Before ``min_tokens`` are generated, tokens that would end generation are forbidden.
        """
        return self._bad_words.completions(self.tokens) + self._early_ends()

    def _early_ends(self) -> list[int]:
        if self.num_generated >= self.request.min_tokens:
            return []
        tokens = self._stop_words.completions(self.tokens, start=len(self.request.input_ids))
        return tokens if self.request.end_id is None else [*tokens, self.request.end_id]

    def guided(self, vocab_size: int) -> "Mask":
        """Return the tokens that may come next, [vocab_size], by the guide and ``forbidden``.

        If these leave no token, ``min_tokens`` is ignored. Raises GuideFailed.
        """
        assert self.follower is not None
        allowed, may_end = self.follower.allowed(vocab_size)
        if self.request.end_id is not None:
            allowed[self.request.end_id] = may_end
        bad_words = self._bad_words.completions(self.tokens)
        for forbidden in (bad_words + self._early_ends(), bad_words):
            left = allowed.copy()
            left[forbidden] = False
            if left.any():
                return left
        raise self.follower.failed("no token is left that it allows and bad_words_list does not forbid")
