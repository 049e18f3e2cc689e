"""Measure what slimming saves: downloads wheels, slims their libraries, compresses them, prints Markdown.

    python -m perf slimming                      # PyTorch with its libraries, and vLLM
    python -m perf slimming xformers==0.0.29.post3 --sm 90

Wheels come by `pip download` for CPython 3.12 on x86-64 Linux and stay in the cache: 3 GB by default, and up
to 2 GB more on the way. Compressed means gzip; a layer's compressed size is about the sum over its files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from perf.options import Options
from perf.table import table

# The package lives outside the project's packages, since a Nix build runs it alone.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nix" / "slim"))

from slim.library import survey
from slim.rewrite import rewrite

# What torch 2.11.0 requires on Linux, and vLLM, which requires that torch.
DEFAULT_WHEELS = (
    "torch==2.11.0",
    "nvidia-cublas==13.1.0.3",
    "nvidia-cuda-cupti==13.0.85",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cudnn-cu13==9.19.0.56",
    "nvidia-cufft==12.0.0.61",
    "nvidia-cufile==1.15.1.6",
    "nvidia-curand==10.4.0.35",
    "nvidia-cusolver==12.0.4.66",
    "nvidia-cusparse==12.6.3.3",
    "nvidia-cusparselt-cu13==0.8.0",
    "nvidia-nccl-cu13==2.28.9",
    "nvidia-nvjitlink==13.0.88",
    "nvidia-nvshmem-cu13==3.4.5",
    "nvidia-nvtx==13.0.85",
    "triton==3.6.0",
    "vllm==0.24.0",
)
PLATFORMS = (
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
    *(f"manylinux_2_{minor}" for minor in range(5, 36)),
)

_WINDOW = 4 << 20


@dataclass
class Measurement:
    """Bytes of a file, or of several: as it is, compressed, and compressed after slimming to each SM."""

    name: str
    size: int = 0
    compressed: int = 0
    slimmed: dict[int, int] = field(default_factory=dict)

    def add(self, other: Measurement) -> None:
        self.size += other.size
        self.compressed += other.compressed
        for sm, size in other.slimmed.items():
            self.slimmed[sm] = self.slimmed.get(sm, 0) + size


def download(requirement: str, cache: Path) -> Path:
    """The wheel of `name==version`, from the cache if it is there."""
    folder = cache / requirement
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.whl")):
        target = ["--python-version", "3.12", "--implementation", "cp"]
        target += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
        target += [part for platform in PLATFORMS for part in ("--platform", f"{platform}_x86_64")]
        options = ["--quiet", "--no-deps", "--only-binary=:all:", *target, "--dest", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], check=True)
    return next(folder.glob("*.whl"))


def measure_wheel(wheel: Path, sms: Sequence[int], level: int, scratch: Path) -> Iterator[Measurement]:
    """A measurement for each library with device code, and one for all other files together."""
    others = Measurement(f"other files of {wheel.name.split('-')[0]}")
    with zipfile.ZipFile(wheel) as archive, ThreadPoolExecutor(len(sms) + 1) as pool:
        for member in archive.infolist():
            if member.is_dir():
                continue
            original = Path(archive.extract(member, scratch))
            measurement = _measure_file(original, PurePosixPath(member.filename).name, sms, level, pool)
            original.unlink()
            if measurement.slimmed:
                yield measurement
            else:
                measurement.slimmed = dict.fromkeys(sms, measurement.compressed)
                others.add(measurement)
    yield others


def _measure_file(
    file: Path, name: str, sms: Sequence[int], level: int, pool: ThreadPoolExecutor
) -> Measurement:
    """`slimmed` stays empty where slimming changes nothing."""
    compressed = pool.submit(compressed_size, file, level)
    slimmed = {}
    plan = survey(file, sms[0])
    if plan is not None and plan.containers:
        slimmed = dict(zip(sms, pool.map(partial(_slimmed_size, file, level), sms), strict=True))
    return Measurement(name, file.stat().st_size, compressed.result(), slimmed)


def _slimmed_size(file: Path, level: int, sm: int) -> int:
    copy = file.with_name(f"{file.name}.{sm}")
    shutil.copyfile(file, copy)
    plan = survey(copy, sm)
    if plan is not None and plan.cuts:
        rewrite(plan, sm)
    size = compressed_size(copy, level)
    copy.unlink()
    return size


def compressed_size(file: Path, level: int) -> int:
    """Bytes of the file as one deflate stream."""
    packer = zlib.compressobj(level)
    size = 0
    with file.open("rb") as stream:
        while window := stream.read(_WINDOW):
            size += len(packer.compress(window))
    return size + len(packer.flush())


def markdown(measurements: Sequence[Measurement], sms: Sequence[int], level: int) -> str:
    """A row for each measurement and one for all, in MB (10^6 bytes) and per cent."""
    head = ["", "files", f"gzip -{level}", *(f"SM {sm}" for sm in sms), *(f"SM {sm}, %" for sm in sms)]
    return table(head, [_cells(each, sms) for each in [*measurements, total("**all**", measurements)]])


def total(name: str, measurements: Iterable[Measurement]) -> Measurement:
    """The sums."""
    whole = Measurement(name)
    for measurement in measurements:
        whole.add(measurement)
    return whole


def _cells(one: Measurement, sms: Sequence[int]) -> list[str]:
    megabytes = [
        f"{size / 1e6:,.1f}" for size in (one.size, one.compressed, *(one.slimmed[sm] for sm in sms))
    ]
    shares = [f"{100 * one.slimmed[sm] / max(one.compressed, 1):.0f}" for sm in sms]
    return [one.name, *megabytes, *shares]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("slimming", __doc__)
    parser.add_argument("wheels", nargs="*", default=DEFAULT_WHEELS, help="name==version")
    parser.add_argument("--sm", type=int, nargs="+", default=[80, 86, 90], help="architectures to slim to")
    parser.add_argument("--level", type=int, default=1, choices=range(1, 10), help="of gzip")
    parser.add_argument("--cache", type=Path, default=Path(".cache/wheels"), help="folder the wheels stay in")
    options = parser.parse_args(arguments)
    wheels: dict[str, list[Measurement]] = {}
    for requirement in options.wheels:
        wheel = download(requirement, options.cache)
        print(f"measuring {wheel.name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=options.cache) as scratch:
            wheels[requirement] = list(measure_wheel(wheel, options.sm, options.level, Path(scratch)))
    print(markdown([total(name, found) for name, found in wheels.items()], options.sm, options.level))
    print()
    print(markdown([one for found in wheels.values() for one in found], options.sm, options.level))

    return 0
