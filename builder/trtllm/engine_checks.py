"""Check what the programs wrote against the config: ranks, config.json, sizes, a short generation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.engine_environment import program_environment
from builder.program import Needs, Program, run_program
from builder.sizes.memory import GpuModel
from builder.trtllm.flags import VERSION
from builder.trtllm.sizing import Sizing
from builder.trtllm.summary import TrtllmBuild
from engine.machine.mpirun import find_mpirun, mpi_environment, mpirun
from engine.machine.python import engine_python
from engine.words import in_words
from errors.build import EngineUnsound, ProgramFailed

PROMPT_TOKENS, NEW_TOKENS = 4, 8
_TRIAL = Path(__file__).resolve().parents[1] / "conversion" / "try_engine.py"

_LEAST_PART, _GREATEST_PART = 0.4, 4.0
"""Accepted size of a rank's engine, relative to its weights."""
_ALLOWANCE_BYTES = 64 << 20
"""Size of an engine's other content."""


@dataclass(frozen=True)
class EngineConfig:
    """Parts of an engine's ``config.json`` that are checked or go into the manifest."""

    version: str
    pretrained: Mapping[str, Any]
    build: Mapping[str, Any]

    @property
    def world_size(self) -> int:
        mapping = self.pretrained["mapping"]
        parallel = self.build.get("auto_parallel_config") or {}
        ranks = mapping["tp_size"] * mapping["pp_size"] * mapping.get("cp_size", 1)
        return int(ranks * parallel.get("world_size", 1))

    def quantization(self, key: str = "quant_algo") -> str | None:
        found = (self.pretrained.get("quantization") or {}).get(key)
        return None if found is None else str(found)

    @property
    def vocab_size(self) -> int:
        return int(self.pretrained["vocab_size"])


def check_checkpoint(step: str, folder: Path, build: TrtllmBuild) -> None:
    """Raise EngineUnsound unless ``folder`` has a checkpoint for every rank of ``build``."""
    _read_object(step, folder / "config.json")
    ranks = build.tp_size * build.pp_size
    _require(step, folder, [f"rank{rank}.safetensors" for rank in range(ranks)])


def read_engine(folder: Path) -> EngineConfig:
    """Read the engine's config. Raises EngineUnsound if it is missing or invalid."""
    step = "build"
    config = _read_object(step, folder / "config.json")
    pretrained, build = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(pretrained, dict) or not isinstance(build, dict):
        raise EngineUnsound(step=step, problem="its config.json has no pretrained_config and build_config")
    engine = EngineConfig(str(config.get("version")), pretrained, build)
    try:
        _ = engine.world_size, engine.vocab_size
    except (KeyError, TypeError, ValueError) as exc:
        raise EngineUnsound(step=step, problem=f"its config.json lacks {exc}") from exc
    return engine


def check_engine(
    folder: Path, build: TrtllmBuild, sizing: Sizing | None, *, is_quantized_already: bool
) -> EngineConfig:
    """Check the engine in ``folder`` and return its config.

    Raises EngineUnsound if it is not that of ``build``.

    ``is_quantized_already``: the model's weights are quantized, so ``build`` need not quantize them.
    """
    engine = read_engine(folder)
    _check_values(engine, build, is_quantized_already=is_quantized_already)
    names = [f"rank{rank}.engine" for rank in range(engine.world_size)]
    _require("build", folder, names)
    if sizing is not None and not build.build.value("strip_plan"):
        for name in names:
            _check_size(folder, name, sizing)
    return engine


def try_engine(
    folder: Path, engine: EngineConfig, gpus: Sequence[GpuModel], needs: Needs, report: Callable[[str], None]
) -> None:
    """Generate a few tokens. Raises EngineUnsound if they are invalid. Reports why it can't be tried."""
    if (reason := _why_not(engine, len(gpus))) is not None:
        report(f"not tried: {reason}")
        return
    max_seq_len = engine.build.get("max_seq_len")
    room = max_seq_len - PROMPT_TOKENS if isinstance(max_seq_len, int) else NEW_TOKENS
    counts = [engine.vocab_size, PROMPT_TOKENS, max(min(room, NEW_TOKENS), 1)]
    python = engine_python()
    launcher = [*mpirun(python), "-n", str(engine.world_size)] if engine.world_size > 1 else []
    program = Program(
        step="check",
        command=[*launcher, python, str(_TRIAL), ".", *map(str, counts)],
        folder=folder,
        environment=mpi_environment(program_environment(offline=True)),
        needs=needs,
        gpu_memory_bytes=min(gpu.memory_bytes for gpu in gpus),
    )
    try:
        run_program(program, report)
    except ProgramFailed as exc:
        raise EngineUnsound(step="build", problem=f"it can't generate: {exc.facts['log_tail']}") from exc


def _why_not(engine: EngineConfig, num_gpus: int) -> str | None:
    if num_gpus < engine.world_size:
        return f"the engine runs on {engine.world_size} GPUs, this machine has {num_gpus}"
    if str(engine.build.get("kv_cache_type", "PAGED")).upper() != "PAGED":
        return "its KV cache is not paged"
    if engine.world_size > 1 and find_mpirun(engine_python()) is None:
        return "there is no mpirun"
    return None


def _check_values(engine: EngineConfig, build: TrtllmBuild, *, is_quantized_already: bool) -> None:
    if build.build.value("build_config") is not None:
        return  # The values of that file override the flags.
    asked: dict[str, tuple[object, object]] = {"TensorRT-LLM version": (VERSION, engine.version)}
    for name in ("max_batch_size", "max_beam_width"):
        asked[name] = (build.build.value(name), engine.build.get(name))
    if build.checkpoint is not None:
        asked["world size"] = (build.world_size, engine.world_size)
        if build.quantization is not None or not is_quantized_already:
            asked["quantization"] = (build.quantization, engine.quantization())
        found = engine.quantization("kv_cache_quant_algo")
        asked["KV cache quantization"] = (build.kv_cache_quantization, found)
    if "max_seq_len" in build.build.args:
        asked["max_seq_len"] = (build.max_seq_len, engine.build.get("max_seq_len"))
    for what, (wanted, present) in asked.items():
        if wanted != present:
            problem = f"its {what} is {present}, but the config asks for {wanted}"
            raise EngineUnsound(step="build", problem=problem)


def _require(step: str, folder: Path, names: list[str]) -> None:
    for name in names:
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:
            raise EngineUnsound(step=step, problem=f"{name} of {len(names)} ranks is missing or empty")


def _check_size(folder: Path, name: str, sizing: Sizing) -> None:
    rank = name.removesuffix(".engine")
    managed = folder / f"{rank}_managed_weights.safetensors"
    found = (folder / name).stat().st_size + (managed.stat().st_size if managed.is_file() else 0)
    expected = sizing.serving.weight_bytes
    least = expected * _LEAST_PART if sizing.split.pp_size == 1 else expected * _LEAST_PART / 2
    if not least <= found <= expected * _GREATEST_PART + _ALLOWANCE_BYTES:
        problem = f"{name} has {in_words(found)}, but the weights of a rank take about {in_words(expected)}"
        raise EngineUnsound(step="build", problem=problem)


def _read_object(step: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise EngineUnsound(step=step, problem=f"it has no readable {path.name}") from exc
    if not isinstance(content, dict):
        raise EngineUnsound(step=step, problem=f"its {path.name} is not a JSON object")
    return content
