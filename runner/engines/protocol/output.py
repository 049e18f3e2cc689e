"""What a client gets of one request, whichever way it asked: of the engine server, or of Triton."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.engines.protocol.messages import FinishReason, TokenLogProb


@dataclass(slots=True, eq=False)
class Output:
    """All that has arrived since the last one."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[TokenLogProb] = field(default_factory=list)
    """One for each of ``tokens``, if the request asks for them."""
    finish_reason: FinishReason | None = None
    """Of the last output."""
    times_s: tuple[float, float] | None = None
    """See ``Finished``."""
