"""LoRA adapters for tests: what the stand-ins read of one."""

import json
from pathlib import Path
from typing import Any


def make_adapter(folder: Path, shift: int, weights: bytes = b"weights", **config: Any) -> Path:
    """Make an adapter. ``shift``: by how much the stand-in's next token is higher; 0: vLLM can't load it."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {"r": 8, "peft_type": "LORA", "standin_shift": shift, **config}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder
