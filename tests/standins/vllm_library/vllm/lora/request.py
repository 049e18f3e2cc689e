from __future__ import annotations

import msgspec


class LoRARequest(msgspec.Struct, omit_defaults=True, array_like=True):
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"id must be > 0, got {self.lora_int_id}")
