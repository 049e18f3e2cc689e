"""What the slot reports of one request: by its own socket as msgpack, by Triton's HTTP API as JSON."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from errors.triton import TritonMalformedEvent
from runner.engines.protocol.messages import TokenLogProb

N = TypeVar("N", int, float)
TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class Event(msgspec.Struct):
    """One event of the slot: new tokens, the end, or an error. Other keys are Triton's own."""

    output_ids: TokenId | list[TokenId] | None = None
    finish_reason: str | None = None
    output_log_probs: float | list[float] | None = None
    top_log_prob_ids: int | list[int] | None = None
    top_log_probs: float | list[float] | None = None
    arrival_time_ns: int | None = None
    last_token_time_ns: int | None = None
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        # Triton writes a tensor of one element as a bare number.
        return [self.output_ids] if isinstance(self.output_ids, int) else self.output_ids or []

    def log_probs(self, num_top: int) -> list[TokenLogProb]:
        """One for each of ``tokens``, with ``num_top`` of the likeliest, or fewer where there are no more."""
        values = _as_list(self.output_log_probs)
        top_ids, top_values = _as_list(self.top_log_prob_ids), _as_list(self.top_log_probs)
        if len(top_ids) != len(top_values):
            raise TritonMalformedEvent(
                event=f"{len(top_ids)} top_log_prob_ids, {len(top_values)} top_log_probs"
            )
        top = list(zip(top_ids, top_values, strict=True))
        return [
            TokenLogProb(value, [each for each in top[at * num_top : (at + 1) * num_top] if each[0] >= 0])
            for at, value in enumerate(values)
        ]


def _as_list(value: N | list[N] | None) -> list[N]:
    """NOTE: see ``Event.tokens``."""
    return value if isinstance(value, list) else [] if value is None else [value]
