"""The values in ``config.json`` of a compiled engine (TensorRT-LLM 0.8 or newer) that serving needs."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors.engine_tar import EngineUnreadable

_TOKENS_PER_BLOCK = 64
"""Default of trtllm-build."""


@dataclass(frozen=True)
class CompiledConfig:
    """Facts of one engine. Lengths are in tokens."""

    version: str
    world_size: int
    """Number of ranks, tp x pp x cp: one process and one GPU each."""
    vocab_size: int
    max_seq_len: int
    max_batch_size: int
    max_beam_width: int
    max_num_tokens: int
    max_input_len: int
    """Limit requested at build time; the effective one is ``prompt_limit``."""
    is_packed: bool
    """True if input padding is removed and context FMHA is on: prompts may exceed ``max_input_len``."""
    has_paged_context: bool
    """True if built with ``--use_paged_context_fmha``: what chunked context and reuse of KV blocks need."""
    tokens_per_block: int = _TOKENS_PER_BLOCK
    """Tokens of a block of the KV cache."""

    def prompt_limit(self, *, is_chunked: bool) -> int:
        """Return the longest prompt that the executor takes, in tokens.

        It is what TRTGptModel logs at its start. A prompt that is not chunked must fit in one step.
        """
        if not self.is_packed:
            return self.max_input_len
        room = self.max_seq_len - 1
        return room if is_chunked else min(room, self.max_num_tokens)


def read_compiled_config(engine_dir: Path) -> CompiledConfig:
    """Read config.json. Raises EngineUnreadable if it is not that of an engine."""
    path = engine_dir / "config.json"
    try:
        return _parse(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        reason = f"it is not the config.json of a TensorRT-LLM engine ({type(exc).__name__}: {exc})"
        raise EngineUnreadable(place=path, reason=reason) from exc


def _parse(document: dict[str, Any]) -> CompiledConfig:
    pretrained, build = document["pretrained_config"], document["build_config"]
    mapping, plugins = pretrained["mapping"], build.get("plugin_config", {})
    max_seq_len, max_batch_size = int(build["max_seq_len"]), int(build["max_batch_size"])
    is_paged = str(build.get("kv_cache_type") or "PAGED").upper().endswith("PAGED")
    return CompiledConfig(
        version=str(document.get("version", "")),
        # NOTE: convert before multiplying: a list times a large one would fill the memory.
        world_size=math.prod(int(mapping.get(name, 1)) for name in ("tp_size", "pp_size", "cp_size")),
        vocab_size=int(pretrained["vocab_size"]),
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
        max_beam_width=int(build.get("max_beam_width") or 1),
        max_num_tokens=int(build.get("max_num_tokens") or max_batch_size * max_seq_len),
        max_input_len=int(build.get("max_input_len") or max_seq_len - 1),
        is_packed=_is_on(plugins, "remove_input_padding", "context_fmha"),
        has_paged_context=is_paged and _is_on(plugins, "use_paged_context_fmha"),
        tokens_per_block=int(plugins.get("tokens_per_block") or _TOKENS_PER_BLOCK),
    )


def _is_on(plugins: dict[str, Any], *names: str) -> bool:
    defaults = {"remove_input_padding": True, "context_fmha": True, "use_paged_context_fmha": False}
    return all(bool(plugins.get(name, defaults[name])) for name in names)
