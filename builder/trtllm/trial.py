"""Try a built engine: generate a few tokens, if this machine has enough GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.engine_environment import program_environment
from builder.program import Needs, Program, run_program
from builder.trtllm.engine_checks import EngineConfig
from engine.machine.mpirun import find_mpirun, mpi_environment, mpirun
from engine.machine.python import engine_python
from errors.build import EngineUnsound, ProgramFailed

PROMPT_TOKENS, NEW_TOKENS = 4, 8
_PROGRAM = Path(__file__).resolve().parents[1] / "conversion" / "try_engine.py"


def try_engine(
    step: str,
    folder: Path,
    engine: EngineConfig,
    *,
    num_gpus: int,
    needs: Needs,
    report: Callable[[str], None],
) -> None:
    """Generate a few tokens. Raises EngineUnsound if they are invalid; reports why it can't be tried."""
    if (reason := _why_not(engine, num_gpus)) is not None:
        report(f"not tried: {reason}")
        return
    max_seq_len = engine.build.get("max_seq_len")
    room = max_seq_len - PROMPT_TOKENS if isinstance(max_seq_len, int) else NEW_TOKENS
    counts = [engine.vocab_size, PROMPT_TOKENS, max(min(room, NEW_TOKENS), 1)]
    program = Program(
        step=step,
        command=[*_launcher(engine.world_size), engine_python(), str(_PROGRAM), ".", *map(str, counts)],
        folder=folder,
        environment=mpi_environment(program_environment(offline=True)),
        needs=needs,
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


def _launcher(world_size: int) -> list[str]:
    if world_size == 1:
        return []
    return [*mpirun(engine_python()), "-n", str(world_size)]
