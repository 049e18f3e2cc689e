"""Machine that builds: TensorRT-LLM compiles an engine for the GPU of this machine only."""

from dataclasses import dataclass

from builder.config.config import BuildConfig
from builder.sizes.memory import GpuModel, gpus_here, gpus_of
from builder.trtllm.flags import VERSION
from builder.trtllm.rules import check_gpu
from builder.trtllm.summary import TrtllmBuild
from engine.machine.gpu import detected_sm
from engine.machine.preflight import installed_version
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.words import in_words
from errors.build import ProgramMissing
from errors.build_config import BuildGpuMissing


@dataclass(frozen=True)
class BuildHost:
    sm: int
    gpus: tuple[GpuModel, ...]

    @property
    def gpu_words(self) -> str:
        """GPUs in words: ``1 x A10 (22.5 GiB), SM 86``."""
        if not self.gpus:
            return f"a GPU, SM {self.sm}"
        first = self.gpus[0]
        return f"{len(self.gpus)} x {first.name} ({in_words(first.memory_bytes)}), SM {self.sm}"


def find_build_host(config: BuildConfig, build: TrtllmBuild) -> BuildHost:
    """Describe this machine. Raises E1222, E1231 and E2309 if it can't build the config's engine."""
    wanted = config.target.sm if config.target is not None else None
    sm = detected_sm()
    if sm is None:
        raise BuildGpuMissing(
            needed=f"an NVIDIA GPU{f' of SM {wanted}' if wanted else ''}",
            found="none is visible",
            remedy="start the container with --gpus=all on a machine with one, or build engine: transformers",
        )
    if wanted not in (None, sm):
        raise BuildGpuMissing(
            needed=f"a GPU of SM {wanted} (target.sm)",
            found=f"this one is SM {sm}",
            remedy="build on such a GPU or change target.sm",
        )
    check_gpu(build, sm)
    version = installed_version(engine_python())("tensorrt_llm")
    if version != VERSION:
        raise ProgramMissing(
            what=f"This builder needs TensorRT-LLM {VERSION}",
            reason=f"{engine_python()} has {version or 'none'}",
            variable=ENGINE_PYTHON_VARIABLE,
        )
    return BuildHost(sm, tuple(gpus_here()))


def gpus_for(config: BuildConfig) -> list[GpuModel]:
    """Return GPUs for the engine: this machine's smallest if the architecture matches, else all known."""
    here = detected_sm()
    wanted = config.target.sm if config.target is not None and config.target.sm is not None else here
    if wanted is None:
        return []
    found = gpus_here() if wanted == here else []
    return [min(found, key=lambda gpu: gpu.memory_bytes)] if found else gpus_of(wanted)
