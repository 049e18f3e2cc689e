"""The command that starts Triton, by mpirun where NVIDIA's C++ backend has several ranks."""

import os
from dataclasses import dataclass
from pathlib import Path

from engine.machine.mpirun import mpirun
from runner.observability.tracing import triton_arguments
from runner.settings.ports import LOOPBACK, TritonPorts
from runner.settings.settings import Settings
from runner.supervision.child import with_parent
from runner.triton_server.install import TritonInstall
from runner.triton_server.model_names import SLOT

_EXIT_TIMEOUT_S = 5

_ANY_PARENT = 0
"""The parent of a rank: mpirun, whose process id is unknown."""


@dataclass(frozen=True)
class TritonCommand:
    """``num_ranks``: of the engine if NVIDIA's C++ backend fills the slot: one Triton each."""

    install: TritonInstall
    model_repository: Path
    settings: Settings
    ports: TritonPorts
    num_ranks: int = 1

    def words(self) -> list[str]:
        """Return the command line of Triton, or of mpirun with a Triton per rank.

        NOTE: all ranks get the same ports, but only rank 0 opens them: the others load the engine alone, wait
        in it until rank 0 ends, and never become ready.
        """
        if self.num_ranks == 1:
            return [*with_parent(os.getpid()), *self._triton(self.shm_prefix)]
        command = [*with_parent(os.getpid()), *mpirun()]
        for rank in range(self.num_ranks):
            command += [":"] if rank else []
            command += ["-n", "1", *with_parent(_ANY_PARENT)]
            command += self._triton(f"{self.shm_prefix}{rank}_")
            command += ["--model-control-mode=explicit", f"--load-model={SLOT}"] if rank else []
        return command

    def _triton(self, shm_prefix: str) -> list[str]:
        settings, ports = self.settings, self.ports
        return [
            str(self.install.server),
            f"--model-repository={self.model_repository}",
            f"--backend-directory={self.install.backend_dir}",
            # A prefix of our own, so that servers on one machine never meet in shared memory.
            f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
            # Clients use the front: Triton's HTTP server can be crashed by a request.
            *(f"--{api}-address={LOOPBACK}" for api in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            "--disable-auto-complete-config",
            # More than the front's requests at a time, so that a heartbeat finds one. Each takes 6 ms to
            # start, one after another, once the models are loaded (docs/measurements/tuning.md).
            "--http-thread-count=20",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            *triton_arguments(settings.otlp_traces_url, settings.service_name),
        ]

    @property
    def shm_prefix(self) -> str:
        """Prefix of the names of Triton's shared memory."""
        return f"cog_triton_{os.getpid()}_{self.settings.triton_http_port}_"
