"""Check that this machine can run an engine, before anything is loaded.

TensorRT itself refuses an engine of another GPU only after minutes of loading, and with a cryptic message.
"""

import subprocess
from collections.abc import Callable

from engine.kinds import KINDS
from engine.machine.gpu import Gpu
from engine.tar.manifest import EngineFacts, Manifest
from errors.machine import (
    GpuMemoryTooSmall,
    GpuRequired,
    TooFewGpus,
    WrongGpuArchitecture,
    WrongImage,
    WrongLibraryVersion,
)
from errors.settings import MissingRequirement

IMAGE_VARIABLE = "COG_TRITON_IMAGE"
"""Set in runner images for GPUs: the image's name, which ends with the one SM that it has code for."""
GPU_NAMES = {
    80: "A100",
    86: "A40, A10, RTX 30xx",
    89: "L4, L40S, RTX 40xx",
    90: "H100, H200",
    100: "B200",
    103: "B300",
    120: "RTX 50xx, RTX PRO",
}
"""GPUs of the architectures that have a runner image."""

# Read metadata and not the package: importing tensorrt_llm takes long and initialises MPI.
_ASK_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_ASK_TIMEOUT_S = 60.0


def installed_version(engine_python: str) -> Callable[[str], str | None]:
    """Return a function that finds the version of a package in the engine environment, or None."""

    def ask(name: str) -> str | None:
        command = [engine_python, "-c", _ASK_VERSION, name]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout.strip() or None

    return ask


def check_runs_here(
    manifest: Manifest, gpus: tuple[Gpu, ...], library_version: Callable[[str], str | None] | None
) -> None:
    """Raise E1322 to E1326 or E1008 if the engine can't run here. ``library_version`` finds a package's."""
    check_gpus(manifest, gpus)
    if KINDS[manifest.engine_kind].is_compiled:
        if library_version is not None:
            _check_library(manifest, library_version)
        _check_memory(manifest, gpus)


def runner_images(sm: int) -> list[str]:
    """Return the names of the runner images for GPUs of ``sm``."""
    return [f"{kind.image}-{sm}" for kind in KINDS.values() if sm in kind.image_sms]


def check_image(image: str | None, gpus: tuple[Gpu, ...], engine_kind: str | None = None) -> None:
    """Raise E1330 if the runner image of this name has no code for one of the GPUs.

    The error names an image of ``engine_kind``, if that is given and has one.
    """
    name, _, sm = (image or "").rpartition("-")
    wanted = (KINDS[engine_kind].image if engine_kind else None) or name
    for gpu in gpus if sm.isdecimal() else ():
        if gpu.sm != int(sm):
            there, remedy = gpu.name or "this GPU", _image_instead(wanted, gpu.sm)
            raise WrongImage(image=image, built_for=sm, gpu=there, present=gpu.sm, remedy=remedy)


def _image_instead(name: str, sm: int) -> str:
    """Return what to use in place of an image whose name begins with ``name``, on a GPU of ``sm``."""
    if (same := f"{name}-{sm}") in runner_images(sm):
        return f"use {same}"
    for kind in KINDS.values():
        if kind.serves_models and sm in kind.image_sms:
            return f"no {name} image is for it; use {kind.image}-{sm} with an engine of kind {kind.name}"
    return "no image is for this GPU; install vLLM without an image"


def check_gpus(facts: EngineFacts, gpus: tuple[Gpu, ...]) -> None:
    """Check the facts that need no more of an engine: kind, architecture and number of GPUs."""
    if not KINDS[facts.engine_kind].needs_gpu:
        return
    if not gpus:
        raise GpuRequired(engine_kind=facts.engine_kind)
    if not KINDS[facts.engine_kind].is_compiled:
        return
    for gpu in gpus[: facts.world_size]:
        if facts.sm not in (None, gpu.sm):
            raise WrongGpuArchitecture(built_for=facts.sm, present=gpu.sm, remedy=_where_it_runs(facts))
    if len(gpus) < facts.world_size:
        present = "1 is" if len(gpus) == 1 else f"{len(gpus)} are"
        raise TooFewGpus(world_size=facts.world_size, present=present, present_count=len(gpus))


def _check_library(facts: EngineFacts, library_version: Callable[[str], str | None]) -> None:
    name = facts.library.name if facts.library else facts.engine_kind
    present = library_version(name)
    if present is None:
        image = _image(facts) or f"{KINDS[facts.engine_kind].image}-<SM>"
        raise MissingRequirement(
            what=f"{name} in the engine environment's Python",
            remedy=f"run the {image} image, or set COG_TRITON_ENGINE_PYTHON to a Python that has it",
        )
    if facts.library is not None and facts.library.version != present:
        config = "its config" if facts.build_config else "the config it was made of"
        rebuild = f"rebuild it with {present}: `cog-triton build` with {config}"
        raise WrongLibraryVersion(
            library=name, built_with=facts.library.version, present=present, rebuild=rebuild
        )


def _check_memory(manifest: Manifest, gpus: tuple[Gpu, ...]) -> None:
    """Check that the weights of a rank fit as they are; what else it needs depends on settings."""
    for rank, gpu in enumerate(gpus[: manifest.world_size]):
        entry = manifest.files.get(f"rank{rank}.engine")
        if entry is None or gpu.free_bytes is None or entry.size_bytes <= gpu.free_bytes:
            continue
        raise GpuMemoryTooSmall(
            rank=rank, needed=_gib(entry.size_bytes), device=rank, free=_gib(gpu.free_bytes)
        )


def _image(facts: EngineFacts) -> str | None:
    kind = KINDS[facts.engine_kind]
    return f"{kind.image}-{facts.sm}" if facts.sm in kind.image_sms else None


def _where_it_runs(facts: EngineFacts) -> str:
    if (image := _image(facts)) is not None and facts.sm is not None:
        return f"run it with the {image} image on an SM {facts.sm} GPU ({GPU_NAMES[facts.sm]})"
    return f"run it on an SM {facts.sm} GPU"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
