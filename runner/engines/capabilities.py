"""What kinds of engine can do beyond what all do: the slot and the OpenAI-compatible API go by it."""

from __future__ import annotations

from typing import Literal

Capability = Literal["log_probs", "min_p", "logit_bias", "lora_name", "guides"]
"""``guides``: if its configuration, or what its engine.tar holds, allows it; see ``Ready.guide_types``."""

_HONOURED: dict[str, frozenset[Capability]] = {
    "vllm": frozenset({"log_probs", "min_p", "logit_bias", "lora_name", "guides"}),
    "tensorrt_llm": frozenset({"guides"}),
    "transformers": frozenset({"log_probs", "min_p", "logit_bias", "guides"}),
    # Its tokens are certain, so nothing can make them likelier, and the least likely has a probability of 1.
    "paced": frozenset({"log_probs", "min_p"}),
}


def honours(engine_kind: str, capability: Capability) -> bool:
    return capability in _HONOURED.get(engine_kind, ())
