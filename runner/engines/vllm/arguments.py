"""What vLLM's engine is made of: ``engine_args.json`` and the slot's options -> arguments and environment.

``engine_args.json`` holds arguments of vLLM's ``AsyncEngineArgs``, as the builder checked them. The slot's
options (server configuration) win over it, so that one engine.tar fits machines of different size.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.end_ids import tokenizer_end_id
from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting

ENGINE_KIND = "vllm"
ENGINE_ARGS_NAME = "engine_args.json"


def read_arguments(engine_dir: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments for ``AsyncEngineArgs``. Raises EngineStartFailed and InvalidSetting."""
    path = engine_dir / ENGINE_ARGS_NAME
    try:
        arguments = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as exc:
        raise EngineStartFailed(engine_kind=ENGINE_KIND, reason=f"{path} can't be read: {exc}") from exc
    if not isinstance(arguments, dict):
        raise EngineStartFailed(engine_kind=ENGINE_KIND, reason=f"{path} is not a JSON object")
    for option, (argument, parse) in _OPTIONS.items():
        if text := options.get(option):
            arguments[argument] = _parse(option, parse, text)
    return {
        **arguments,
        "model": str(engine_dir),
        # The slot's tokens are ids in and ids out: it is for guides alone.
        "skip_tokenizer_init": guide_end_id(engine_dir) is None,
        # The model's own sampling defaults would mix with the request's.
        "generation_config": "vllm",
        # ``vllm_scheduler`` tells what the slot's metrics need.
        "disable_log_stats": True,
    }


def prepare_environment(arguments: Mapping[str, Any], cache_dir: str | None) -> None:
    """Set what vLLM reads when it is imported; what the operator has set stays."""
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # An engine is complete: nothing is to be looked up.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # NOTE: its default path imports flashinfer whether or not it is there.
        "VLLM_USE_FLASHINFER_SAMPLER": "1" if importlib.util.find_spec("flashinfer") else "0",
    }
    if not is_multi_node(arguments):
        # NOTE: else vLLM asks a public address which of ours leads there.
        values["VLLM_HOST_IP"] = "127.0.0.1"
    if cache_dir:
        values |= {
            "VLLM_CACHE_ROOT": f"{cache_dir}/vllm",
            "TRITON_CACHE_DIR": f"{cache_dir}/triton",
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)


def guide_end_id(engine_dir: Path) -> int | None:
    """The token at which vLLM lets a guided output end: the tokenizer's own. None: no guides without it."""
    if not (engine_dir / "tokenizer.json").is_file():
        return None
    return tokenizer_end_id(engine_dir, Tokenizer.from_file(str(engine_dir / "tokenizer.json")).token_to_id)


def is_multi_node(arguments: Mapping[str, Any]) -> bool:
    """Whether other machines belong to this engine: they must find this one's address."""
    return arguments.get("distributed_executor_backend") == "ray" or arguments.get("nnodes", 1) > 1


def lora_adapters(engine_dir: Path) -> dict[str, Path]:
    """The adapters that the engine carries, by name: folders below ``lora``."""
    folder = engine_dir / "lora"
    return {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError("a whole number above 0")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError("a number above 0 and at most 1")
    return share


def _dtype(text: str) -> str:
    if text not in ("auto", "float16", "bfloat16", "float32"):
        raise ValueError("auto, float16, bfloat16 or float32")
    return text


_OPTIONS: dict[str, tuple[str, Callable[[str], object]]] = {
    "max_batch_size": ("max_num_seqs", _count),
    "dtype": ("dtype", _dtype),
    "gpu_memory_utilization": ("gpu_memory_utilization", _share),
    "tensor_parallel_size": ("tensor_parallel_size", _count),
}
"""The slot's options by name: vLLM's argument, and how the text is read."""


def _parse(option: str, parse: Callable[[str], object], text: str) -> object:
    try:
        return parse(text)
    except ValueError as exc:
        raise InvalidSetting(name=option, expected=str(exc), value=text) from exc
