"""Follows a compiled guide, token by token, for one output."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from errors.requests import GuideFailed
from runner.engines.guides.errors import REMEDY, complexity_reason, first_line
from runner.engines.protocol.messages import Guide

_FOLLOW_S = 0.1
_FOLLOW_TOKEN_S = 0.005
"""Processor time that an output may take to follow its guide: at first, and for each token."""
_SLOW_S, _SLOW_SHARE = 0.06, 0.2
"""Processor time of all masks together, beyond ``_FOLLOW_TOKEN_S`` for each: at once, and of each second."""

Mask = npt.NDArray[np.bool_]


class SlowMasks:
    """A limit of the time that all outputs of an engine take for slow masks: all wait for each one's mask."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._at_s = 0.0

    def add(self, seconds: float) -> None:
        self._spent_s += max(seconds - _FOLLOW_TOKEN_S, 0)

    def has_room(self, seconds: float) -> bool:
        """Tell whether a mask may take this time."""
        if seconds <= _FOLLOW_TOKEN_S:
            return True
        now_s = time.monotonic()
        self._spent_s = max(self._spent_s - _SLOW_SHARE * (now_s - self._at_s), 0)
        self._at_s = now_s
        return self._spent_s + seconds - _FOLLOW_TOKEN_S <= _SLOW_S


@dataclass
class CompiledGuide:
    """A guide, for any number of outputs."""

    guide: Guide
    grammar: str
    """Grammar for llguidance."""
    matcher: LLMatcher
    num_bytes: int
    slowest_mask_s: float
    """Time of the slowest mask so far."""


class Follower:
    """The state of one output in its guide. Used by one thread at a time."""

    def __init__(self, compiled: CompiledGuide, end_mark: int, slow_masks: SlowMasks) -> None:
        self._compiled = compiled
        self._slow_masks = slow_masks
        self._matcher = compiled.matcher.deep_copy()
        self._end_mark = end_mark
        self._num_tokens = 0
        self._spent_s = 0.0

    @property
    def grammar(self) -> str:
        return self._compiled.grammar

    @property
    def is_complete(self) -> bool:
        """Tell whether the output can only end here."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self, vocab_size: int) -> tuple[Mask, bool]:
        """Return which tokens may come next, [vocab_size], and if the output may end. Raises GuideFailed."""
        if not self._slow_masks.has_room(self._compiled.slowest_mask_s):
            raise self.failed(f"it is slow, as are other guides that are running; {REMEDY}")
        start_s = time.thread_time()
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._stuck()
        mask_s = self._spend(start_s)
        self._slow_masks.add(mask_s)
        self._compiled.slowest_mask_s = max(self._compiled.slowest_mask_s, mask_s)
        bits = np.unpackbits(packed, bitorder="little")
        allowed = np.zeros(vocab_size, dtype=np.bool_)
        known = min(vocab_size, self._end_mark)
        allowed[:known] = bits[:known]
        return allowed, bool(bits[self._end_mark])

    def take(self, token: int) -> None:
        """Add the next token of the output. Raises GuideFailed."""
        self._num_tokens += 1
        start_s = time.thread_time()
        if not self._matcher.consume_token(token):
            raise self._stuck()
        self._spend(start_s)

    def failed(self, reason: str) -> GuideFailed:
        return GuideFailed(guide_type=self._compiled.guide.type, tokens=self._num_tokens, reason=reason)

    def _stuck(self) -> GuideFailed:
        error = self._matcher.get_error()
        return self.failed(complexity_reason(error) or first_line(error))

    def _spend(self, start_s: float) -> float:
        """Return the time since ``start_s``, which is limited: other outputs wait for it at each step."""
        seconds = time.thread_time() - start_s
        self._spent_s += seconds
        if self._spent_s > _FOLLOW_S + _FOLLOW_TOKEN_S * self._num_tokens:
            raise self.failed(f"it takes more than {_FOLLOW_TOKEN_S * 1e3:g} ms for each token; {REMEDY}")
        return seconds
