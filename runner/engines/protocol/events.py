"""What the slot reports of one request: by its own socket as msgpack, by Triton's HTTP API as JSON."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from errors.triton import TritonMalformedEvent
from runner.engines.protocol.messages import TokenLogProb

N = TypeVar("N", int, float)
TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class Event(msgspec.Struct, omit_defaults=True):
    """Output tensors by the slot's names. A tensor of one element is a bare number, as in Triton's JSON."""

    output_ids: TokenId | list[TokenId] | None = None
    finish_reason: str | None = None
    output_log_probs: float | list[float] | None = None
    top_log_prob_ids: int | list[int] | None = None
    top_log_probs: float | list[float] | None = None
    arrival_time_ns: int | None = None
    last_token_time_ns: int | None = None

    @property
    def tokens(self) -> list[int]:
        return [self.output_ids] if isinstance(self.output_ids, int) else self.output_ids or []

    def log_probs(self, num_top: int) -> list[TokenLogProb]:
        """One for each of ``tokens``, with at most ``num_top`` of the most likely tokens. Raises E2104."""
        values = _as_list(self.output_log_probs)
        top_ids, top_values = _as_list(self.top_log_prob_ids), _as_list(self.top_log_probs)
        if len(top_ids) != len(top_values):
            raise TritonMalformedEvent(
                event=f"{len(top_ids)} top_log_prob_ids, {len(top_values)} top_log_probs"
            )
        if len(values) != len(self.tokens):
            raise TritonMalformedEvent(event=f"{len(self.tokens)} output_ids, {len(values)} output_log_probs")
        top = list(zip(top_ids, top_values, strict=True))
        return [
            TokenLogProb(value, [each for each in top[at * num_top : (at + 1) * num_top] if each[0] >= 0])
            for at, value in enumerate(values)
        ]


def _as_list(value: N | list[N] | None) -> list[N]:
    return value if isinstance(value, list) else [] if value is None else [value]
