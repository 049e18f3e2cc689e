"""What determines a checkpoint and an engine: the normalised config, for the build cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.trtllm.commands import Command
from builder.trtllm.flags import find_flag
from builder.weights.model_identity import looks

_WITHOUT_EFFECT = frozenset(
    {
        "model_dir", "model-dir", "ckpt_dir", "output_dir", "output-model-dir", "checkpoint_dir", "workers",
        "log_level", "output_timing_cache", "monitor_memory",
    }
)  # fmt: skip
"""Arguments that say where or how something is done, but change nothing of what comes out."""


def normalised(
    config: BuildConfig, commands: Sequence[Command], inputs: Mapping[str, Path]
) -> dict[str, Any]:
    """Equal for configs that give the same result: defaults left out, each value as the program reads it."""
    content: dict[str, Any] = {command.key: _of(command) for command in commands}
    if config.weight_format is not None:
        content["weight_format"] = config.weight_format
    if config.trust_remote_code:
        content["trust_remote_code"] = True
    if inputs:
        content["inputs"] = {name: looks(path) for name, path in inputs.items()}
    return content


def _of(command: Command) -> Mapping[str, Any]:
    call = command.call
    args: dict[str, Any] = {}
    for name, given in call.args.items():
        flag = find_flag(call.program, name)
        value = given if flag is None else call.value(name)
        if name not in _WITHOUT_EFFECT and (flag is None or value not in (flag.default, False)):
            args[flag.name if flag is not None else name] = value
    script = command.script_digest
    return {"program": call.program, **({"script": script[:16]} if script else {}), "args": args}
