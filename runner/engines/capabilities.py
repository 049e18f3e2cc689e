"""What kinds of engine can do beyond what all do, as data: by the fields of the OpenAI-compatible API."""

from __future__ import annotations

_HONOURED: dict[str, frozenset[str]] = {
    "vllm": frozenset({"logprobs"}),
}


def honoured_by(engine_kind: str) -> frozenset[str]:
    """What this kind takes of that which not all do."""
    return _HONOURED.get(engine_kind, frozenset())
