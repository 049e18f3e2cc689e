"""LoRA adapters: their files, their digest and what an engine can load."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from engine.disk import sha256_of
from errors.requests import AdapterRefused

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
NAMES = (CONFIG_NAME, WEIGHTS_NAME)
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's ``max_lora_rank``."""
TENSORRT_LLM_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "up_proj": "mlp_gate",
    "gate_up_proj": "mlp_gate_up",
}
"""TensorRT-LLM's names of the modules that an adapter can change, by Hugging Face's names."""
_MAX_CONFIG_BYTES = 1 << 20

AdapterShape = tuple[int, list[str] | None]
"""Largest rank, and the names of the modules that an adapter changes."""


def adapter_digest(files: Mapping[str, str]) -> str:
    """Return the digest of an adapter: SHA-256 of the SHA-256 of its files, as a manifest has them."""
    lines = "".join(f"{files[name]}  {name}\n" for name in NAMES)
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of(folder: Path) -> str:
    """Read the adapter's files and return their digest. Raises OSError."""
    return adapter_digest({name: sha256_of(folder / name) for name in NAMES})


def adapter_shape(name: str, folder: Path) -> AdapterShape:
    """Return the adapter's largest rank and the names of the modules that it changes.

    The names are None if the adapter does not list them. Raises E1014 if it is no plain LoRA adapter of PEFT.
    """
    try:
        with (folder / CONFIG_NAME).open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
        ranks: list[int] = [config["r"], *(config.get("rank_pattern") or {}).values()]
        is_plain = config.get("peft_type", "LORA") == "LORA" and not config.get("use_dora")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise AdapterRefused(adapter=name, reason=f"its {CONFIG_NAME} can't be read ({exc!r})") from exc
    if not is_plain or not all(type(rank) is int and rank >= 1 for rank in ranks):
        raise AdapterRefused(adapter=name, reason=f"its {CONFIG_NAME} does not describe a LoRA of rank r")
    modules = config.get("target_modules")
    is_listed = isinstance(modules, list) and all(isinstance(each, str) for each in modules)
    return max(ranks), modules if is_listed else None
