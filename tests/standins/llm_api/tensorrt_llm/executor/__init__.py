"""Stand-in for ``tensorrt_llm.executor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..typed import check_fields


class RequestError(RuntimeError):
    """An error of one request."""


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        check_fields(self)
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
