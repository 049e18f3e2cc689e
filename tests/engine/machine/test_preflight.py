"""What a machine can't run is told in one sentence, with the way out, before anything is loaded."""

import re
import sys
from pathlib import Path

import pytest

from engine.kinds import KINDS
from engine.machine.gpu import Gpu
from engine.machine.preflight import (
    GPU_NAMES,
    check_gpus,
    check_image,
    check_runs_here,
    installed_version,
    runner_images,
)
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts, FileEntry, Library, Manifest
from errors.machine import (
    GpuMemoryTooSmall,
    GpuRequired,
    TooFewGpus,
    WrongGpuArchitecture,
    WrongImage,
    WrongLibraryVersion,
)
from errors.settings import MissingRequirement

GIB = 1 << 30
H100 = Gpu(90, "NVIDIA H100", 80 * GIB, 79 * GIB)
A40 = Gpu(86, "NVIDIA A40", 45 * GIB, 44 * GIB)


def manifest(*, world_size: int = 1, rank_bytes: int = 14 * GIB, version: str = "0.16.0") -> Manifest:
    ranks = {f"rank{rank}.engine": rank_bytes for rank in range(world_size)}
    return Manifest(
        engine_kind="tensorrt_llm",
        library=Library(name="tensorrt_llm", version=version),
        sm=90,
        world_size=world_size,
        files={name: FileEntry(size_bytes=size, sha256="0" * 64) for name, size in ranks.items()},
    )


def check_with(engine: Manifest, *gpus: Gpu, version: str | None = "0.16.0") -> None:
    check_runs_here(engine, gpus, lambda name: version)


def test_a_machine_as_it_was_built_for_runs_it() -> None:
    check_with(manifest(), H100)
    check_with(manifest(world_size=2), H100, H100, A40)


def test_an_engine_for_another_architecture_is_refused_with_the_image() -> None:
    with pytest.raises(WrongGpuArchitecture, match="built for SM 90, this GPU is SM 86") as caught:
        check_with(manifest(), A40)
    assert "cog-triton-runner-90 image" in str(caught.value)
    assert "H100" in str(caught.value)
    with pytest.raises(WrongGpuArchitecture, match="run it on an SM 75 GPU, or rebuild"):
        check_gpus(EngineFacts(engine_kind="tensorrt_llm", sm=75), (H100,))
    with pytest.raises(WrongGpuArchitecture, match="this GPU is SM 86"):
        check_with(manifest(world_size=2), H100, A40)


@pytest.mark.parametrize(
    ("image", "gpu", "says"),
    [
        (
            "cog-triton-runner-vllm-90",
            Gpu(89, "NVIDIA L4"),
            "vllm-90 has code for GPUs of SM 90 only, and NVIDIA L4 is SM 89: use cog-triton-runner-vllm-89.",
        ),
        ("cog-triton-runner-80", A40, "use cog-triton-runner-86."),
        (
            "cog-triton-runner-90",
            Gpu(100),
            "image is for it; use cog-triton-runner-vllm-100 with an engine of kind vllm.",
        ),
        (
            "cog-triton-runner-tensorrt-llm-pytorch-90",
            Gpu(89, "NVIDIA L4"),
            "NVIDIA L4 is SM 89: use cog-triton-runner-tensorrt-llm-pytorch-89.",
        ),
        (
            "cog-triton-runner-tensorrt-llm-pytorch-90",
            A40,
            "no cog-triton-runner-tensorrt-llm-pytorch image is for it; use cog-triton-runner-vllm-86 with",
        ),
        ("cog-triton-runner-vllm-120", Gpu(121, "NVIDIA GB10"), "no image is for this GPU"),
    ],
)
def test_a_wrong_image_is_refused_with_the_one_that_fits(image: str, gpu: Gpu, says: str) -> None:
    with pytest.raises(WrongImage, match=re.escape(says)):
        check_image(image, (gpu,))
    sm = int(image.rpartition("-")[2])
    check_image(image, (Gpu(sm),))
    with pytest.raises(WrongImage):
        check_image(image, (Gpu(sm), gpu))


@pytest.mark.parametrize("image", [None, "", "cog-triton-runner-cpu", "mine"])
def test_an_image_without_an_architecture_in_its_name_is_for_any(image: str | None) -> None:
    check_image(image, (H100, A40))


def test_the_images_named_are_those_that_nix_has() -> None:
    images = (SOURCE_ROOT / "nix" / "images.nix").read_text()
    outputs = re.findall(r'runners "([a-z-]+)" \w+ \[([^\]]*)\]', images)
    has = {f"{name}-{sm}" for name, sms in outputs for sm in re.findall(r"\d+", sms)}
    assert {image for sm in GPU_NAMES for image in runner_images(sm)} == has
    assert {sm for kind in KINDS.values() for sm in kind.image_sms} == set(GPU_NAMES)


def test_an_engine_that_needs_a_gpu_is_refused_without_one() -> None:
    for facts in (EngineFacts(engine_kind="tensorrt_llm", sm=86), EngineFacts(engine_kind="vllm")):
        with pytest.raises(GpuRequired, match=facts.engine_kind):
            check_gpus(facts, ())


@pytest.mark.parametrize(("gpus", "says"), [((H100,), "1 is visible"), ((H100,) * 3, "3 are visible")])
def test_too_few_gpus_are_counted(gpus: tuple[Gpu, ...], says: str) -> None:
    with pytest.raises(TooFewGpus, match=f"built for 4 GPUs and {says}"):
        check_with(manifest(world_size=4), *gpus)


def test_another_version_of_the_library_is_refused_with_both() -> None:
    with pytest.raises(WrongLibraryVersion, match=r"tensorrt_llm 0\.12\.0, here is 0\.16\.0") as caught:
        check_with(manifest(version="0.12.0"), H100)
    assert "cog-triton build" in str(caught.value)


def test_without_the_library_the_image_is_named() -> None:
    with pytest.raises(MissingRequirement, match=r"tensorrt_llm in .* run the cog-triton-runner-90 image"):
        check_with(manifest(), H100, version=None)


def test_where_the_backend_brings_its_library_it_is_not_asked_for() -> None:
    check_runs_here(manifest(), (H100,), None)


def test_weights_that_do_not_fit_are_told_with_rank_and_gpu() -> None:
    full = Gpu(90, "NVIDIA H100", 80 * GIB, 10 * GIB)
    with pytest.raises(GpuMemoryTooSmall, match=r"Rank 1 .* takes 14\.0 GiB and GPU 1 has 10\.0 GiB free"):
        check_with(manifest(world_size=2), H100, full)
    check_with(manifest(world_size=2), H100, Gpu(90))


@pytest.mark.parametrize(
    ("facts", "gpus"),
    [
        (EngineFacts(engine_kind="tensorrt_llm"), (H100,)),
        (EngineFacts(engine_kind="vllm", sm=86), (H100,)),
        (EngineFacts(engine_kind="transformers"), ()),
        (EngineFacts(engine_kind="paced", sm=86), ()),
    ],
)
def test_every_other_engine_runs(facts: EngineFacts, gpus: tuple[Gpu, ...]) -> None:
    check_gpus(facts, gpus)


def test_the_version_is_that_of_the_given_python(tmp_path: Path) -> None:
    ask = installed_version(sys.executable)
    assert ask("pytest") == pytest.__version__
    assert ask("no-such-package") is None
    assert installed_version(str(tmp_path / "python"))("pytest") is None
