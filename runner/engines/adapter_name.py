"""Which engines know LoRA adapters by name, and what others answer."""

from __future__ import annotations

from errors.requests import UnsupportedArgument
from runner.engines.capabilities import honours

_ELSEWHERE = "leave it out"
_BY_NUMBER = (
    "it knows adapters by number: leave the name out and ask Triton's model tensorrt_llm, with lora_task_id, "
    "lora_weights and lora_config"
)


def check_adapter_name(name: str | None, engine_kind: str) -> None:
    """Raise E1104 if an engine of this kind knows no adapters by name. Whether it has this one, it says."""
    if name is None or honours(engine_kind, "lora_name"):
        return
    remedy = _BY_NUMBER if engine_kind == "tensorrt_llm" else _ELSEWHERE
    raise UnsupportedArgument(name="lora_name", value=name, engine_kind=engine_kind, remedy=remedy)
