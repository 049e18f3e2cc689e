"""How an engine worker is started: its command and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.kinds import find_kind
from engine.machine.child_environment import without_secret_variables
from engine.machine.root import SOURCE_ROOT
from runner.engines.protocol.arrival import PARAMETER
from runner.supervision.tuning import restore_malloc


@dataclass(frozen=True)
class EngineCommand:
    """How to start a worker. ``python`` is the engine environment's interpreter."""

    python: str
    engine_kind: str
    engine_dir: Path
    options: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 1800.0
    """From the arrival of the engine."""
    arrival: Path | None = None
    """See ``runner.engines.protocol.arrival``. Among ``options`` as well: the worker waits too."""
    hang_timeout_s: float = 300.0
    """0: never."""

    def arguments(self, socket_fd: int, exit_reason_fd: int) -> list[str]:
        arguments = [self.python, "-m", "runner.engines.worker.main", "--socket-fd", str(socket_fd)]
        arguments += ["--exit-reason-fd", str(exit_reason_fd)]
        arguments += ["--kind", self.engine_kind, "--engine-dir", str(self.engine_dir)]
        for key, value in self.options.items():
            arguments += ["--option", f"{key}={value}"]
        return arguments

    def without_arrival(self) -> EngineCommand:
        """The same for an engine that is there: a later start depends on no file but the engine's."""
        options = {key: value for key, value in self.options.items() if key != PARAMETER}
        return replace(self, arrival=None, options=options)

    def environment(self) -> dict[str, str]:
        """Our environment without secrets and what is set for Triton: the worker's libraries are its own."""
        environment = without_secret_variables(os.environ)
        environment |= {"PYTHONPATH": str(SOURCE_ROOT), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        restore_malloc(environment)
        environment.pop("PYTHONHOME", None)
        environment = {**find_kind(self.engine_kind).environment, **environment}
        own = environment.pop("COG_TRITON_ENGINE_LD_LIBRARY_PATH", "")
        environment.pop("LD_LIBRARY_PATH", None)
        if own:
            environment["LD_LIBRARY_PATH"] = own
        return environment
