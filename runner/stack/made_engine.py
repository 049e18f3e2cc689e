"""The engine made of MODEL_ID at start, by the builder: another program, which the runner does not import."""

import os
import subprocess
import sys
from pathlib import Path

from engine.machine.python import ENGINE_PYTHON_VARIABLE
from engine.machine.root import SOURCE_ROOT
from errors import find_in_text
from errors.engine_tar import EngineNotFound
from runner.settings.settings import Settings
from runner.supervision.child import Log, how_ended, with_parent


def make_engine(settings: Settings, log: Log) -> Path:
    """Return the engine's folder. Blocks while the model is downloaded. Raises the builder's errors."""
    assert settings.model_id is not None, "asked only for a model"
    environment = {
        **os.environ,
        ENGINE_PYTHON_VARIABLE: settings.engine_python,
        "COG_TRITON_CACHE": str(settings.cache_dir),
        "PYTHONPATH": str(SOURCE_ROOT),
    }
    line = ""
    with subprocess.Popen(
        [*with_parent(os.getpid()), sys.executable, "-m", "builder.engine_here", settings.model_id],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as builder:
        for text in builder.stdout or ():
            line = text.rstrip()
            log(f"model: {line}")
    if builder.returncode:
        reason = f"could not be made an engine ({how_ended(builder.returncode)}: {line})"
        raise find_in_text(line) or EngineNotFound(place=settings.model_id, reason=reason)
    return Path(line)
