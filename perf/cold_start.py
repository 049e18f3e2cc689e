"""Measure an engine's way from an HTTP server to READY.

An engine.tar on loopback HTTP is fetched, unpacked and verified, in turns with `curl | tar x` on it: once of
few large files, once of many small ones. Then a runner starts on it, and its log shows how long each step
takes. The disk needs room for four times the size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from engine.directory import load
from engine.machine.description import machine
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from errors.requests import InvalidInput
from errors.settings import MissingRequirement
from perf.engines import paced_engine, tiny_engine
from perf.file_server import serve_file
from perf.options import Options
from perf.servers import whole_stack
from perf.table import table

_SMALL_FILE_BYTES = 64 << 10
_LARGE_FILES = 4
_MOST_SMALL_FILES = 1 << 16
"""More than the weights of any model, and within what a tar may have."""
_BLOCK_BYTES = 8 << 20

# Run by a process of its own, whose memory is this work's alone.
_OPEN = """
import re, sys, time
from pathlib import Path
from engine.cache.store import open_engine
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before, started = peak(), time.monotonic()
open_engine(sys.argv[1], Path(sys.argv[2]))
print(time.monotonic() - started, peak() - before)
"""

_HASHED = (
    "mkfifo '{folder}.sum'; sha256sum < '{folder}.sum' > /dev/null & "
    "curl -sf '{url}' | tee '{folder}.sum' | tar x -C '{folder}'; wait; rm '{folder}.sum'"
)

_MILESTONES = (
    ("coglet ", "Cog's server has started"),
    ("Worker starting setup", "Cog's worker has started"),
    ("Running setup", "the runner is imported"),
    ("engine: ", "the engine is fetched, unpacked and verified"),
    ("triton: ", "Triton has started"),
    ("loading: tensorrt_llm", "Triton loads its models"),
    ("engine ready", "the engine worker has loaded the engine"),
    ("successfully loaded 'ensemble'", "all of Triton's models are ready"),
    ("test prediction", "a test prediction is done"),
    ("Setup complete", "the runner is set up"),
)
"""What a line of the runner's log says, and what it means."""


@dataclass(frozen=True)
class Transfer:
    """Seconds for one tar, and the most memory that ours took beyond its start."""

    shape: str
    gib: float
    curl_tar_s: float
    hashed_s: float
    """`curl | tee | tar x`, with sha256sum at the tee: what does as much as ours, but knows no files."""
    ours_s: float
    extra_bytes: int

    @property
    def speed(self) -> float:
        """Against `curl | tar x`: above 1 is faster."""
        return self.curl_tar_s / self.ours_s


def make_tar(folder: Path, size_bytes: int, files: int, kind: str = "paced") -> Path:
    """An engine.tar of a paced or tiny transformers engine with ``files`` files of random bytes beside it."""
    directory = paced_engine(folder, 0) if kind == "paced" else tiny_engine(folder)
    facts = load(directory).manifest.model_dump(include=set(EngineFacts.model_fields))
    (directory / "engine_manifest.json").unlink()
    block = os.urandom(_BLOCK_BYTES)
    for index in range(files):
        left_bytes = size_bytes // files
        with (directory / f"weights-{index:06}.bin").open("wb") as file:
            while left_bytes:
                left_bytes -= file.write(block[:left_bytes])
    tar = folder / "engine.tar"
    pack(directory, EngineFacts(**facts), tar)
    shutil.rmtree(directory)
    return tar


def measure_transfer(shape: str, tar: Path, folder: Path, rounds: int) -> Transfer:
    """In turns, after a sync each; the best of each counts."""
    if shutil.which("curl") is None:
        raise MissingRequirement(what="curl", remedy="install it: its speed is what ours is compared with")
    curl_tar_s, hashed_s, ours = [], [], []
    with serve_file(tar) as url:
        for _ in range(rounds):
            with _scratch(folder / "plain") as plain:
                curl_tar_s.append(_timed_s(["sh", "-c", f"curl -sf '{url}' | tar x -C '{plain}'"]))
            with _scratch(folder / "plain") as plain:
                hashed_s.append(_timed_s(["sh", "-c", _HASHED.format(url=url, folder=plain)]))
            with _scratch(folder / "cache") as cache:
                command = [sys.executable, "-c", _OPEN, url, str(cache)]
                done = subprocess.run(command, cwd=SOURCE_ROOT, capture_output=True, text=True, check=True)
                seconds, extra_bytes = done.stdout.split()
                ours.append((float(seconds), int(extra_bytes)))
    ours_s = min(seconds for seconds, _ in ours)
    gib = tar.stat().st_size / (1 << 30)
    return Transfer(shape, gib, min(curl_tar_s), min(hashed_s), ours_s, max(extra for _, extra in ours))


@dataclass(frozen=True)
class Step:
    """Something that has happened, seconds after the process was started."""

    at_s: float
    what: str


def measure_start(
    tar: Path, folder: Path, bytes_per_s: float = math.inf, engine_python: str = sys.executable
) -> list[Step]:
    """From the process's start to READY with COG_WEIGHTS at a URL and an empty cache, in order."""
    with serve_file(tar, bytes_per_s) as url, _scratch(folder / "start") as scratch:
        started_s = time.time()
        with whole_stack(
            scratch, {"COG_WEIGHTS": url}, engine_python=engine_python, timeout_s=3600.0
        ) as stack:
            ready_s = time.time()
            steps = list(_steps(stack.log_path.read_text(errors="replace"), started_s))
    return [*sorted(steps, key=lambda step: step.at_s), Step(ready_s - started_s, "READY was seen")]


def _steps(log: str, started_s: float) -> Iterator[Step]:
    """The first line of each milestone."""
    waiting = list(_MILESTONES)
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            text = str(entry["fields"]["message"])
            at = datetime.fromisoformat(entry["timestamp"].replace("Z", "")).replace(tzinfo=timezone.utc)
        except (ValueError, KeyError, TypeError):
            continue  # Not one of Cog's lines.
        for milestone in [each for each in waiting if each[0] in text]:
            waiting.remove(milestone)
            yield Step(at.timestamp() - started_s, milestone[1])


def transfer_table(transfers: Sequence[Transfer]) -> str:
    head = ["engine.tar", "GiB", "curl, tar x", "and sha256sum", "fetch + unpack + verify", "speed"]
    head += ["with sha256sum", "extra memory"]
    rows = [
        [
            each.shape,
            f"{each.gib:.2f}",
            f"{each.curl_tar_s:.2f} s",
            f"{each.hashed_s:.2f} s",
            f"{each.ours_s:.2f} s",
            f"{each.speed:.2f}x",
            f"{each.hashed_s / each.ours_s:.2f}x",
            f"{each.extra_bytes / (1 << 20):.0f} MiB",
        ]
        for each in transfers
    ]
    return table(head, rows)


def start_table(steps: Sequence[Step]) -> str:
    """When each step was reached, and how long since the one before."""
    before_s = [0.0, *(step.at_s for step in steps)]
    rows = [
        [step.what, f"{step.at_s:.2f} s", f"{step.at_s - since_s:+.2f} s"]
        for step, since_s in zip(steps, before_s, strict=False)
    ]
    return table(["reached", "after", "step"], rows)


def _timed_s(command: Sequence[str]) -> float:
    started_s = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - started_s


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards; the disk is idle when it begins."""
    folder.mkdir()
    os.sync()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("cold-start", __doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of engine.tar")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best counts")
    parser.add_argument("--folder", help="where to work (the temporary folder by default)")
    parser.add_argument("--shape", choices=("large", "small", "both"), default="both", help="of its files")
    parser.add_argument("--start-only", action="store_true", help="start the runner, compare nothing")
    parser.add_argument("--mib-per-s", type=float, default=math.inf, help="speed of the runner's network")
    parser.add_argument("--engine-python", help="start a transformers engine with this Python")
    options = parser.parse_args(arguments)
    if not _SMALL_FILE_BYTES <= options.gib * (1 << 30) < math.inf:
        raise InvalidInput(name="gib", expected="a size above 0", value=options.gib)
    if options.rounds < 1:
        raise InvalidInput(name="rounds", expected="at least 1", value=options.rounds)
    if not options.mib_per_s > 0:
        raise InvalidInput(name="mib-per-s", expected="above 0", value=options.mib_per_s)
    size_bytes = int(options.gib * (1 << 30))
    shapes = {"large": _LARGE_FILES, "small": min(size_bytes // _SMALL_FILE_BYTES, _MOST_SMALL_FILES)}
    transfers: list[Transfer] = []
    tables: list[str] = []
    for shape, files in shapes.items():
        if options.shape in (shape, "both"):
            with tempfile.TemporaryDirectory(prefix="cog-triton-cold-", dir=options.folder) as name:
                _measure_shape(options, Path(name), size_bytes, files, transfers, tables)
    print("\n\n".join(filter(None, [machine(), transfer_table(transfers) if transfers else "", *tables])))
    return 0


def _measure_shape(
    options: argparse.Namespace,
    folder: Path,
    size_bytes: int,
    files: int,
    transfers: list[Transfer],
    tables: list[str],
) -> None:
    _say(f"making an engine.tar of {files} files")
    tar = make_tar(folder, size_bytes, files, "transformers" if options.engine_python else "paced")
    if not options.start_only:
        _say("fetching and unpacking it, in turns with curl and tar")
        transfers.append(measure_transfer(f"{files} files", tar, folder, options.rounds))
    if files == _LARGE_FILES:
        _say("starting a runner on it")
        python = str(Path(options.engine_python or sys.executable).absolute())
        tables.append(start_table(measure_start(tar, folder, options.mib_per_s * (1 << 20), python)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
