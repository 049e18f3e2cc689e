from __future__ import annotations

from typing import Any, NamedTuple


class LogprobsLists(NamedTuple):
    logprob_token_ids: Any
    """Array [tokens, 1 + likeliest]: the chosen token, then the likeliest."""
    logprobs: Any
