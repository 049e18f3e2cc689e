"""How long an engine.tar takes from an HTTP server to READY, beside what `curl | tar x` takes for it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from engine.directory import load
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from errors.settings import MissingRequirement
from perf.bench.engines import paced_engine, tiny_engine
from perf.bench.file_server import serve_file
from perf.bench.servers import starting_stack
from perf.bench.table import table

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
    extra = {"COG_TRITON_ENGINE_PYTHON": engine_python}
    with serve_file(tar, bytes_per_s) as url, _scratch(folder / "start") as scratch:
        started_s = time.time()
        with starting_stack(scratch, {"COG_WEIGHTS": url, **extra}) as server:
            server.wait_ready(3600.0)
            ready_s = time.time()
            steps = list(_steps(server.log_path.read_text(errors="replace"), started_s))
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
    head = [
        "engine.tar",
        "GiB",
        "curl, tar x",
        "and sha256sum",
        "fetch + unpack + verify",
        "speed",
        "with sha256sum",
        "extra memory",
    ]
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
