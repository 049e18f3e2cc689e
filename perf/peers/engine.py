"""The engine that all servers run: a given one of kind vllm, or vLLM's core over a stand-in executor."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.build import build
from engine.cache.store import open_engine
from engine.kinds import ENGINE_ARGS_NAME
from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from runner.engines.vllm.arguments import ENGINE_KIND

_PLATFORM = SOURCE_ROOT / "tests" / "standins" / "vllm_platform"
_ARGUMENTS = {
    "max_num_seqs": 256,
    "max_model_len": 1024,
    "max_num_batched_tokens": 8192,
    "distributed_executor_backend": "tests.standins.vllm_executor.StandInExecutor",
}


@dataclass(frozen=True)
class Engine:
    """``variables`` are for the environment of every server on it."""

    folder: Path
    python: str
    cache: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    step_file: Path | None = None
    """Of the stand-in executor."""

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / ENGINE_ARGS_NAME).read_text()))

    def set_step(self, step_s: float) -> None:
        """Seconds of each of the stand-in's steps; a real engine's take as long as they take."""
        if self.step_file is not None:
            # Rewritten in place: the executor keeps it open.
            with self.step_file.open("r+") as file:
                file.write(f"{step_s:<16.6f}")


def given_engine(place: str, python: str, folder: Path) -> Engine:
    """Of an engine.tar or engine folder."""
    opened = open_engine(place, folder / "cache")
    if opened.manifest.engine_kind != ENGINE_KIND:
        raise InvalidInput(name="engine", expected="one of kind vllm", value=opened.manifest.engine_kind)
    return Engine(opened.path, python, folder / "cache" / "engine_cache")


def standin_engine(python: str, folder: Path) -> Engine:
    """The tiny model without a GPU: the next token is the next id, and a step takes what is set."""
    config = folder / "engine.yaml"
    # A build config is YAML, and so is JSON.
    config.write_text(json.dumps({"engine": "vllm", "model_path": "examples/tiny/model", "vllm": _ARGUMENTS}))
    build(config, folder / "engine.tar", report=lambda line: None)
    opened = open_engine(str(folder / "engine.tar"), folder / "cache")
    step_file = folder / "step"
    step_file.write_text(f"{0:<16.6f}")
    with_standins = folder / "python"
    path = f"$PYTHONPATH:{SOURCE_ROOT}:{_PLATFORM}"
    real = shlex.quote(str(Path(shutil.which(python) or python).absolute()))
    with_standins.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {real} "$@"\n')
    with_standins.chmod(0o755)
    programs = (str(Path(sys.executable).parent), str(_PLATFORM / "bin"), os.environ["PATH"])
    variables = {"PATH": ":".join(programs), "STANDIN_STEP_FILE": str(step_file)}
    return Engine(opened.path, str(with_standins), folder / "cache" / "engine_cache", variables, step_file)
